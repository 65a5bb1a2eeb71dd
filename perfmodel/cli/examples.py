"""An example of every command, shown by its --help; a test reads each, and runs those that need neither GPU nor file."""

from __future__ import annotations

from typing import Any

_GEMM = "-m 4096 -n 14336 -k 4096"
_PREFILL = "--phase prefill --batch 1 --q-len 4096 --kv-len 4096 --q-heads 32 --kv-heads 8 --head-dim 128"
_MOE = "--tokens 64 --hidden 4096 --inter 1536 --num-experts 128 --top-k 8"
_MLA = "--phase decode --batch 32 --kv-len 4096 --num-heads 16"
EXAMPLES: dict[str, tuple[str, ...]] = {
    "gpus": ("perfmodel gpus --json",),
    "gpus list": ("perfmodel gpus list --csv",),
    "gpus show": ("perfmodel gpus show h100_sxm",),
    "gpus lint": ("perfmodel gpus lint h100_sxm",),
    "gpus add": ("perfmodel gpus add my_card --like l40s",),
    "rank gemm": (f"perfmodel rank gemm --gpu h100_sxm {_GEMM} --top-k 8", f"perfmodel rank gemm --gpu l20 {_GEMM} --as triton"),
    "rank attention": (f"perfmodel rank attention --gpu h100_sxm {_PREFILL}",),
    "rank moe": (f"perfmodel rank moe --gpu h100_sxm {_MOE} --best 4",),
    "rank": ("perfmodel rank --triton-file kernels.py:matmul --run-file --gpu h100_sxm --arg M=4096 --grid 'cdiv(M, BLOCK_M)'",),
    "tune gemm": (f"perfmodel tune gemm {_GEMM}",),
    "tune attention": (f"perfmodel tune attention {_PREFILL}",),
    "tune moe": (f"perfmodel tune moe {_MOE}",),
    "measure collectives": ("perfmodel measure collectives --n-gpus 8 --out rows.jsonl",),
    "plan": ("perfmodel plan --model Llama-3.1-8B --gpus h100_sxm,l40s --isl 1000 --osl 200 --request-rate 4 --tpot-ms 25",),
    "estimate": ("perfmodel estimate --model Llama-3.1-8B --gpu h100_sxm --isl 1000 --osl 200 --concurrency 16",),
    "memory": ("perfmodel memory --model Qwen3-32B --gpu l20 --tp 4",),
    "models": ("perfmodel models", "perfmodel models Qwen3-32B"),
    "export vllm-moe": ("perfmodel export vllm-moe --gpu h200_sxm --hidden 4096 --inter 1536 --num-experts 128",),
    "export fp8-gemm": ("perfmodel export fp8-gemm --gpu h100_sxm -n 4096 -k 7168",),
    "export inductor": (f"perfmodel export inductor --gpu h100_sxm {_GEMM} --top-k 4",),
    "export show": ("perfmodel export show E=128,N=768,device_name=NVIDIA_H200.json",),
    "store show": ("perfmodel store show",),
    "store export": ("perfmodel store export timings.jsonl",),
    "store import": ("perfmodel store import timings.jsonl",),
    "store import-autotune": ("perfmodel store import-autotune ~/.triton/cache --gpu h100_sxm --keys M,N,K",),
    "calibrate": ("perfmodel calibrate", "perfmodel calibrate --dry-run --gpu b200_sxm"),
    "calibrate list": ("perfmodel calibrate list --gpu h100_sxm",),
    "calibrate show": ("perfmodel calibrate show h100_sxm/gemm",),
    "calibrate remove": ("perfmodel calibrate remove h100_sxm/gemm",),
    "calibrate report": ("perfmodel calibrate report --gpu h200_sxm",),
    "calibrate table": ("perfmodel calibrate table docs/examples/b200_gemm.csv --kind gemm --gpu b200_sxm",),
    "evaluate speed": ("perfmodel evaluate speed",),
    "evaluate physics": ("perfmodel evaluate physics --questions 2000",),
    "evaluate collectives": ("perfmodel evaluate collectives --left-out gpus",),
    "evaluate serving": ("perfmodel evaluate serving",),
    "evaluate anykernel": ("perfmodel evaluate anykernel --gpu h200_sxm --data data/gemm/plain_h200_sxm.parquet --sweep gemm_bf16",),
    "evaluate published-moe": ("perfmodel evaluate published-moe",),
    "evaluate ranking": ("perfmodel evaluate ranking --gpu h200_sxm --data data/gemm/evaluation_h200_sxm.parquet",),
    "evaluate operators": ("perfmodel evaluate operators --operator gemm --gpu h100_sxm",),
    "evaluate stacks": ("perfmodel evaluate stacks --operator attention_decode",),
}
for _verb in ("predict", "explain"):
    EXAMPLES |= {
        f"{_verb} gemm": (f"perfmodel {_verb} gemm --gpu h100_sxm {_GEMM} --stack vllm",),
        f"{_verb} attention": (f"perfmodel {_verb} attention --gpu l40s {_PREFILL}",),
        f"{_verb} mla": (f"perfmodel {_verb} mla --gpu h200_sxm {_MLA}",),
        f"{_verb} moe": (f"perfmodel {_verb} moe --gpu h100_sxm {_MOE}",),
        f"{_verb} memory": (f"perfmodel {_verb} memory --gpu h100_sxm --kind rmsnorm --tokens 64 --hidden 4096",),
        f"{_verb} collective": (f"perfmodel {_verb} collective --gpu h100_sxm --kind all_reduce --message-bytes 1048576 --n-gpus 8",),
    }
    for _kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"):
        EXAMPLES[f"{_verb} {_kind}"] = (f"perfmodel {_verb} {_kind} --gpu h100_sxm --n-gpus 8 --bytes 16MiB --stack vllm",)
    EXAMPLES[f"{_verb} p2p"] = (f"perfmodel {_verb} p2p --gpu h100_sxm --n-gpus 2 --bytes 1MiB",)
EXAMPLES["predict gemm"] += ("perfmodel predict gemm --gpu h100_sxm,l20 -m 1,64,4096 -n 4096 -k 4096",)


def add_examples(command: Any, path: str) -> None:
    """Give a command, and those below it, their examples as the end of their help."""
    if lines := EXAMPLES.get(path):
        command.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
    for name, sub in getattr(command, "commands", {}).items():
        add_examples(sub, f"{path} {name}")
