"""Chat templates with tools and thinking, and the demo model with one of them, or with other metadata. Python's
standard library only.
"""
import os
import struct
import sys

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DEMO = os.path.join(REPO, "examples", "models", "auspex-demo.gguf")
sys.path.insert(0, os.path.join(REPO, "tools"))
from gguf_template import head_of, head_with  # noqa: E402

with open(os.path.join(REPO, "tests", "data", "elements.jinja")) as elements:
    ELEMENTS = elements.read()
# The same for a model that thinks only if it is asked to.
CLOSED = ELEMENTS.replace("enable_thinking is defined and enable_thinking is false",
                          "enable_thinking is not defined or enable_thinking is false")
assert CLOSED != ELEMENTS


def with_template(text):
    """The demo model with another chat template."""
    with open(DEMO, "rb") as f:
        return head_with(f, text.encode()) + f.read()


def with_sampling(**recommended):
    """The demo model with a recommendation of general.sampling.*: integers as i32, others as f32."""
    with open(DEMO, "rb") as f:
        return head_of(f, {b"general.sampling." + name.encode(): struct.pack("<Ii", 5, value) if isinstance(value, int)
                           else struct.pack("<If", 6, value) for name, value in recommended.items()}) + f.read()
