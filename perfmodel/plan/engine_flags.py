"""Flags of engines' start commands by what they mean to a plan.

Names are those of the engines' own argument parsers: vllm/engine/arg_utils.py and vllm/entrypoints/openai/cli_args.py (vLLM 0.6 to 0.11),
python/sglang/srt/server_args.py (SGLang 0.4 to 0.5). A flag that is in none of these tables is unknown, and said to be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FlagTable:
    """What an engine's flags do.

    read: field of Engine -> spellings of the flag that fills it, the first is written; model: flags that name the model; sharing: switches
    that change how GPUs are shared; without_bearing: of no bearing on a plan; unmodelled: change latency or memory, and are not modelled.
    Those in `switches` take no value, those in `listed` as many as follow, all others one.
    """

    model: tuple[str, ...]
    read: Mapping[str, tuple[str, ...]]
    sharing: tuple[str, ...]
    without_bearing: frozenset[str]
    unmodelled: frozenset[str]
    switches: frozenset[str]
    listed: frozenset[str]


VLLM_READ = {
    "tensor_parallel_size": ("--tensor-parallel-size", "-tp"),
    "pipeline_parallel_size": ("--pipeline-parallel-size", "-pp"),
    "data_parallel_size": ("--data-parallel-size", "-dp"),
    "quantization": ("--quantization", "-q"),
    "kv_cache_dtype": ("--kv-cache-dtype",),
    "max_num_seqs": ("--max-num-seqs",),
    "max_num_batched_tokens": ("--max-num-batched-tokens",),
    "max_model_len": ("--max-model-len",),
    "memory_fraction": ("--gpu-memory-utilization",),
}
SGLANG_READ = {
    "tensor_parallel_size": ("--tp-size", "--tp", "--tensor-parallel-size"),
    "pipeline_parallel_size": ("--pp-size", "--pp", "--pipeline-parallel-size"),
    "data_parallel_size": ("--dp-size", "--dp", "--data-parallel-size"),
    "expert_parallel_size": ("--ep-size", "--ep", "--expert-parallel-size"),
    "quantization": ("--quantization",),
    "kv_cache_dtype": ("--kv-cache-dtype",),
    "max_num_seqs": ("--max-running-requests",),
    "max_num_batched_tokens": ("--chunked-prefill-size",),
    "max_model_len": ("--context-length",),
    "memory_fraction": ("--mem-fraction-static", "--mem-frac"),
}


def _names(text: str) -> frozenset[str]:
    return frozenset(f"--{name}" for name in text.split())


_VLLM_SWITCHES_WITHOUT_BEARING = _names(
    """trust-remote-code disable-log-stats disable-log-requests enable-log-requests enable-log-outputs enable-auto-tool-choice
    enable-prompt-tokens-details enable-per-request-metrics enable-server-load-tracking enable-request-id-headers enable-ssl-refresh
    disable-uvicorn-access-log disable-fastapi-docs allow-credentials return-tokens-as-token-ids disable-frontend-multiprocessing
    enable-reasoning enable-sleep-mode skip-tokenizer-init log-error-stack enable-force-include-usage enable-tokenizer-info-endpoint
    ray-workers-use-nsight exclude-tools-when-tool-choice-none trust-request-chat-template headless
    enable-chunked-prefill enable-prefix-caching no-enable-log-requests disable-hybrid-kv-cache-manager use-tqdm-on-load"""
)
_VLLM_VALUES_WITHOUT_BEARING = _names(
    """host port uds api-key served-model-name download-dir revision code-revision tokenizer-revision tokenizer tokenizer-mode
    tokenizer-pool-size tokenizer-pool-type tokenizer-pool-extra-config load-format model-loader-extra-config config-format hf-token
    hf-config-path chat-template chat-template-content-format default-chat-template-kwargs response-role tool-call-parser
    tool-parser-plugin tool-server reasoning-parser uvicorn-log-level log-config-file max-log-len max-logprobs seed
    ssl-keyfile ssl-certfile ssl-ca-certs ssl-cert-reqs root-path middleware allowed-origins allowed-methods allowed-headers
    generation-config override-generation-config otlp-traces-endpoint collect-detailed-traces show-hidden-metrics-for-version
    limit-mm-per-prompt mm-processor-kwargs mm-processor-cache-gb allowed-local-media-path media-io-kwargs interleave-mm-strings
    guided-decoding-backend structured-outputs-config logits-processors logits-processor-pattern ignore-patterns
    distributed-executor-backend worker-cls worker-extension-cls nnodes node-rank master-addr master-port api-server-count
    max-parallel-loading-workers swap-space preemption-mode data-parallel-address data-parallel-rpc-port data-parallel-size-local
    data-parallel-start-rank data-parallel-rank data-parallel-backend kv-events-config additional-config model-impl"""
)
_VLLM_SWITCHES_UNMODELLED = _names(
    """enforce-eager enable-lora enable-lora-bias fully-sharded-loras no-enable-chunked-prefill no-enable-prefix-caching
    disable-custom-all-reduce disable-sliding-window disable-cascade-attn use-v2-block-manager enable-eplb enable-dbo
    disable-chunked-mm-input enable-prompt-adapter calculate-kv-scales disable-async-output-proc async-scheduling
    multi-step-stream-outputs"""
)
_VLLM_VALUES_UNMODELLED = _names(
    """speculative-config speculative-model num-speculative-tokens speculative-draft-tensor-parallel-size ngram-prompt-lookup-max
    ngram-prompt-lookup-min spec-decoding-acceptance-method dtype block-size cpu-offload-gb num-gpu-blocks-override
    kv-cache-memory-bytes kv-transfer-config kv-offloading-size kv-offloading-backend compilation-config optimization-level
    cuda-graph-sizes cudagraph-capture-sizes max-cudagraph-capture-size max-seq-len-to-capture num-scheduler-steps
    scheduler-delay-factor scheduling-policy scheduler-cls max-num-partial-prefills max-long-partial-prefills
    long-prefill-token-threshold lora-modules max-loras max-lora-rank max-cpu-loras lora-dtype lora-extra-vocab-size
    attention-backend all2all-backend eplb-config num-redundant-experts decode-context-parallel-size prefill-context-parallel-size
    rope-scaling rope-theta hf-overrides runner
    task convert device qlora-adapter-name-or-path mamba-cache-dtype mamba-ssm-cache-dtype num-lookahead-slots
    moe-backend expert-placement-strategy prefix-caching-hash-algo stream-interval dbo-decode-token-threshold"""
)
_SGLANG_SWITCHES_WITHOUT_BEARING = _names(
    """trust-remote-code log-requests enable-metrics skip-server-warmup skip-tokenizer-init show-time-cost enable-cache-report
    enable-p2p-check disable-outlines-disk-cache enable-metrics-for-all-schedulers collect-tokens-histogram decode-log-requests
    enable-request-time-stats-logging enable-custom-logit-processor allow-auto-truncate sleep-on-idle enable-memory-saver
    enable-mixed-metrics crash-on-nan enable-multimodal disable-fast-image-processor keep-mm-feature-on-device"""
)
_SGLANG_VALUES_WITHOUT_BEARING = _names(
    """host port nccl-port api-key served-model-name download-dir revision tokenizer-path tokenizer-mode tokenizer-worker-num
    load-format model-loader-extra-config chat-template completion-template hf-chat-template-name tool-call-parser reasoning-parser
    log-level log-level-http log-requests-level random-seed watchdog-timeout dist-timeout dist-init-addr nccl-init-addr nnodes node-rank
    base-gpu-id gpu-id-step weight-version warmups file-storage-path storage-path constrained-json-whitespace-pattern grammar-backend
    preferred-sampling-params sampling-defaults tool-server decode-log-interval bucket-time-to-first-token
    bucket-inter-token-latency bucket-e2e-request-latency device model-impl load-balance-method stream-interval crash-dump-folder"""
)
_SGLANG_SWITCHES_UNMODELLED = _names(
    """disable-cuda-graph disable-cuda-graph-padding enable-torch-compile enable-mixed-chunk disable-radix-cache disable-overlap-schedule
    disable-custom-all-reduce enable-two-batch-overlap enable-single-batch-overlap enable-eplb enable-deepep-moe enable-ep-moe
    enable-flashinfer-moe enable-flashinfer-allreduce-fusion enable-lora enable-hierarchical-cache enable-dp-lm-head enable-nccl-nvls
    enable-symm-mem enable-mscclpp enable-nan-detection enable-deterministic-inference enable-pdmux disable-chunked-prefix-cache
    disable-shared-experts-fusion disable-hybrid-swa-memory enable-triton-kernel-moe triton-attention-reduce-in-fp32
    enable-piecewise-cuda-graph enable-layerwise-nvtx-marker is-embedding enable-double-sparsity"""
)
_SGLANG_VALUES_UNMODELLED = _names(
    """speculative-algorithm speculative-algo speculative-draft-model-path speculative-draft-model speculative-num-steps
    speculative-eagle-topk speculative-num-draft-tokens speculative-token-map speculative-attention-mode dtype attention-backend
    prefill-attention-backend decode-attention-backend sampling-backend mm-attention-backend moe-runner-backend moe-a2a-backend
    deepep-mode fp8-gemm-backend max-prefill-tokens max-total-tokens max-queued-requests schedule-policy schedule-conservativeness
    page-size cpu-offload-gb cuda-graph-max-bs cuda-graph-bs torch-compile-max-bs lora-paths max-loras-per-batch max-lora-rank
    lora-backend lora-target-modules ep-num-redundant-experts ep-dispatch-algorithm init-expert-location eplb-algorithm moe-dense-tp-size
    disaggregation-mode disaggregation-transfer-backend disaggregation-bootstrap-port disaggregation-ib-device
    disaggregation-decode-tp hicache-ratio hicache-size hicache-write-policy hicache-storage-backend num-continuous-decode-steps
    hybrid-kvcache-ratio swa-full-tokens-ratio quantization-param-path torchao-config prefill-max-requests max-mamba-cache-size
    mamba-ssm-dtype attn-cp-size nsa-prefill-backend nsa-decode-backend json-model-override-args"""
)

VLLM = FlagTable(
    model=("--model",),
    read=VLLM_READ,
    sharing=("--enable-expert-parallel", "-ep"),
    without_bearing=_VLLM_SWITCHES_WITHOUT_BEARING | _VLLM_VALUES_WITHOUT_BEARING,
    unmodelled=_VLLM_SWITCHES_UNMODELLED | _VLLM_VALUES_UNMODELLED | {"-O", "-O0", "-O1", "-O2", "-O3"},
    switches=_VLLM_SWITCHES_WITHOUT_BEARING | _VLLM_SWITCHES_UNMODELLED | {"-O0", "-O1", "-O2", "-O3"},
    listed=_names("served-model-name middleware api-key lora-modules cuda-graph-sizes cudagraph-capture-sizes ignore-patterns"),
)
SGLANG = FlagTable(
    model=("--model-path", "--model"),
    read=SGLANG_READ,
    sharing=("--enable-dp-attention",),
    without_bearing=_SGLANG_SWITCHES_WITHOUT_BEARING | _SGLANG_VALUES_WITHOUT_BEARING,
    unmodelled=_SGLANG_SWITCHES_UNMODELLED | _SGLANG_VALUES_UNMODELLED,
    switches=_SGLANG_SWITCHES_WITHOUT_BEARING | _SGLANG_SWITCHES_UNMODELLED,
    listed=_names("cuda-graph-bs lora-paths lora-target-modules warmups disaggregation-ib-device"),
)
TABLES: Mapping[str, FlagTable] = {"vllm": VLLM, "sglang": SGLANG}
