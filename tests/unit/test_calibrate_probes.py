"""The ceilings' Triton kernels in the interpreter on the CPU: what they read, follow and compute."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

CODE = """
import json, torch
from triton.runtime import interpreter
patch = interpreter._patch_lang_tensor
def patch_and_count(tensor, scope):
    patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))  # numpy 2.4 refuses range() over 1-element arrays
interpreter._patch_lang_tensor = patch_and_count
from perfmodel.measure.kernels import probes as p
out = {}
source = torch.arange(4 * 3 * 64, dtype=torch.int32)
total = torch.zeros(4, dtype=torch.int32)
p.read_kernel[(4,)](source, total, 3, 2, 1, BLOCK=64)
blocks = source.view(3, 4, 64).sum(dim=(0, 2))  # of program p in the first pass, of program p - 1 in the second
out["read"] = [total.tolist(), (blocks + blocks.roll(-1)).tolist()]
chain = torch.zeros(8, dtype=torch.int32)
order = torch.tensor([0, 6, 2, 4])
chain[order] = order.roll(-1).to(torch.int32)
place = torch.zeros(1, dtype=torch.int32)
visited = []
for _ in range(6):
    p.chase_kernel[(1,)](chain, place, 1)
    visited.append(int(place))
p.chase_kernel[(1,)](chain, place, 3)
out["chase"] = [visited, int(place)]
values = torch.zeros(1)
p.exp_kernel[(1,)](values, 200, BLOCK=8)
out["exp"] = float(values)
print(json.dumps(out))
"""


def test_the_kernels_do_what_is_counted() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["read"][0] == found["read"][1]
    assert found["chase"] == [[6, 2, 4, 0, 6, 2], 6]  # 2 -> 4 -> 0 -> 6
    assert found["exp"] == pytest.approx(8 * 0.6411857, rel=1e-3)  # x = 2^-x
