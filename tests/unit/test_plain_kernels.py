"""Numerics of the plain kernels in Triton's interpreter on the CPU, against torch; in a child: the interpreter is asked for at import."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

CHILD = """
import json, torch
from triton.runtime import interpreter
patch = interpreter._patch_lang_tensor
def patched(tensor, scope):
    patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))  # numpy 2.4 refuses range() over 1-element arrays
interpreter._patch_lang_tensor = patched
from perfmodel.measure.kernels import plain as p
torch.manual_seed(0)
half = torch.float16
def off(a, b): return float((a.float() - b.float()).norm() / b.float().norm())
found = {}
a, b = torch.randn(20, 70, dtype=half), torch.randn(36, 70, dtype=half)
c = torch.empty(20, 36, dtype=half)
p.gemm[(2 * 2,)](a, b, c, 20, 36, 70, 70, 70, 36, BM=16, BN=32, BK=32, GM=8)
found["gemm"] = off(c, a.float() @ b.float().T)
q, k, v = torch.randn(2, 4, 33, 16, dtype=half), torch.randn(2, 2, 33, 16, dtype=half), torch.randn(2, 2, 33, 16, dtype=half)
for causal in (True, False):
    o = torch.empty_like(q)
    p.attention[(3, 8)](q, k, v, o, 1.4426950408889634 / 4, 33, 4, 2, D=16, CAUSAL=causal, BM=16, BN=16)
    s = (q.float() @ k.float().repeat_interleave(2, 1).transpose(-1, -2)) / 4
    if causal: s = s.masked_fill(torch.ones(33, 33).triu(1).bool(), float("-inf"))
    found[f"attention {causal}"] = off(o, s.softmax(-1) @ v.float().repeat_interleave(2, 1))
q = torch.randn(2, 6, 16, dtype=half)
part, lse, o = torch.empty(2, 6, 2, 16), torch.empty(2, 6, 2), torch.empty(2, 6, 16, dtype=half)
p.decode[(4, 2)](q, k, v, part, lse, 1.4426950408889634 / 4, 33, 2, 3, 2, 17, D=16, ROWS=16, BN=16)
p.combine[(12,)](part, lse, o, 2, D=16, NS=2)
s = (q.view(2, 2, 3, 16).float() @ k.float().transpose(-1, -2)) / 4
found["decode"] = off(o.view(2, 2, 3, 16), s.softmax(-1) @ v.float())
x = torch.randn(3, 50)
y = torch.empty_like(x)
p.softmax[(3,)](x, y, 3, 50, BLOCK=64)
found["softmax"] = off(y, x.softmax(-1))
w, g = torch.randn(50), torch.randn(50)
p.layer_norm[(3,)](x, w, g, y, 50, 1e-5, BLOCK=16)
found["layer_norm"] = off(y, torch.nn.functional.layer_norm(x, (50,), w, g))
p.silu_mul[(3,)](x, x.flip(0).contiguous(), y, 150, BLOCK=64)
found["silu_mul"] = off(y, torch.nn.functional.silu(x.flip(0)) * x)
tokens, experts, top = torch.randn(5, 32, dtype=half), torch.randn(3, 24, 32, dtype=half), 2
of = [0, 1, 2, 2, 0, 2, 1, 2, 0, 1]
ids, owners = [], []
for e in range(3):
    mine = [i for i, o_ in enumerate(of) if o_ == e]
    ids += mine + [10] * (-len(mine) % 16)
    owners += [e] * (-(-len(mine) // 16))
out = torch.empty(10, 24, dtype=half)
p.fused_moe[(len(owners) * 1,)](tokens, experts, out, torch.tensor(ids, dtype=torch.int32), torch.tensor(owners, dtype=torch.int32),
    24, 32, len(ids), 10, top, BLOCK_SIZE_M=16, BLOCK_SIZE_N=32, BLOCK_SIZE_K=32, GROUP_SIZE_M=1)
found["fused_moe"] = off(out, torch.stack([experts[e].float() @ tokens[i // top].float() for i, e in enumerate(of)]))
print(json.dumps(found))
"""


def test_every_plain_kernel_is_right():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 8
    assert {name: error for name, error in found.items() if not error < 2e-3} == {}
