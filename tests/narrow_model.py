"""A model that computes rows of a prompt cheaply: the demo model's tokens, one narrow DeltaNet layer, one of attention
and a draft block.

For tests of long prompts whose replies are scripted. Python's standard library only.
"""
import array
import os
import random
import struct
import sys
import tempfile

from test_cli import DEMO, REPO, gguf_string

sys.path.insert(0, os.path.join(REPO, "tools"))
from gguf_template import split  # noqa: E402

U32, F32, STRING = 4, 6, 8
D_MODEL, D_FF, D_HEAD, N_VOCAB, N_CONV = 32, 32, 16, 8192, 4
KEYS = {
    "block_count": 3, "full_attention_interval": 2, "embedding_length": D_MODEL, "feed_forward_length": D_FF,
    "attention.head_count": 1, "attention.head_count_kv": 1, "attention.key_length": D_HEAD,
    "attention.value_length": D_HEAD, "rope.dimension_count": D_HEAD,
    "ssm.conv_kernel": N_CONV, "ssm.state_size": D_HEAD, "ssm.group_count": 1, "ssm.time_step_rank": 1,
    "ssm.inner_size": D_HEAD,
}
FFN = {"attn_norm": (D_MODEL,), "post_attention_norm": (D_MODEL,), "ffn_gate": (D_MODEL, D_FF),
       "ffn_up": (D_MODEL, D_FF), "ffn_down": (D_FF, D_MODEL)}
DELTA = {"attn_qkv": (D_MODEL, 3 * D_HEAD), "attn_gate": (D_MODEL, D_HEAD), "ssm_beta": (D_MODEL, 1),
         "ssm_alpha": (D_MODEL, 1), "ssm_conv1d": (N_CONV, 3 * D_HEAD), "ssm_dt.bias": (1,), "ssm_a": (1,),
         "ssm_norm": (D_HEAD,), "ssm_out": (D_HEAD, D_MODEL)}
ATTENTION = {"attn_q": (D_MODEL, 2 * D_HEAD), "attn_k": (D_MODEL, D_HEAD), "attn_v": (D_MODEL, D_HEAD),
             "attn_q_norm": (D_HEAD,), "attn_k_norm": (D_HEAD,), "attn_output": (D_HEAD, D_MODEL)}
DRAFT = {**ATTENTION, "nextn.eh_proj": (2 * D_MODEL, D_MODEL), "nextn.enorm": (D_MODEL,), "nextn.hnorm": (D_MODEL,),
         "nextn.shared_head_norm": (D_MODEL,)}


def shapes():
    """{tensor: widths}"""
    all_shapes = {"token_embd": (D_MODEL, N_VOCAB), "output_norm": (D_MODEL,)}
    for i, layer in enumerate((DELTA, ATTENTION, DRAFT)):
        all_shapes.update({f"blk.{i}.{name}": widths for name, widths in {**FFN, **layer}.items()})
    return {name if name.endswith(("ssm_a", "bias")) else name + ".weight": w for name, w in all_shapes.items()}


def values(name, widths, source):
    """Norms and biases are 1, decays -1, matrices random."""
    if len(widths) == 1:
        return array.array("f", [-1.0 if name.endswith("ssm_a") else 1.0] * widths[0])
    return array.array("f", [source.uniform(-0.5, 0.5) for _ in range(widths[0] * widths[1])])


def metadata(template):
    """Entries of the demo model, with other widths and this chat template."""
    replaced = {f"qwen35.{k}": gguf_string(f"qwen35.{k}") + struct.pack("<II", U32, n) for k, n in KEYS.items()}
    name = "tokenizer.chat_template"
    text = template.encode()
    replaced[name] = gguf_string(name) + struct.pack("<IQ", STRING, len(text)) + text
    with open(DEMO, "rb") as f:
        _, entries, _, _ = split(f)
    return [replaced.get(key.decode(), data) for key, data in entries if key != b"qwen35.rope.dimension_sections"]


def narrow_model(template):
    """The path of a new file."""
    entries, source, data, infos = metadata(template), random.Random(1), bytearray(), b""
    for name, widths in shapes().items():
        infos += gguf_string(name) + struct.pack(f"<I{len(widths)}QIQ", len(widths), *widths, 0, len(data))
        data += values(name, widths, source).tobytes()
        data += b"\0" * (-len(data) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes()), len(entries)) + b"".join(entries) + infos
    with tempfile.NamedTemporaryFile(suffix=".gguf", delete=False) as f:
        f.write(head + b"\0" * (-len(head) % 32) + data)
    return f.name
