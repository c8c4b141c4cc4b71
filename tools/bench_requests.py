#!/usr/bin/env python3
"""Asks any endpoint of OpenAI's chat protocol nine kinds of questions, and prints what was drafted and how fast it was.

  tools/bench_requests.py URL                      nine prompts, one after the other
  tools/bench_requests.py URL --replay 20          a tool loop of 20 steps: rows processed, rows cached, first token

URL is that of the server, with or without /v1. Drafts and rows come from `timings` (auspex, llama.cpp), where the
server sends them; without them tokens and times are those that the client sees, and drafts are "-". Rates are those of
decoding, from the first token to the last; a reply of one token has none.

Python's standard library only.
"""
import argparse
import http.client
import json
import sys
import time
import urllib.error
import urllib.request

REVIEW = '''
class Cache:
    def __init__(self, limit):
        self.limit = limit
        self.items = {}
        self.order = []

    def get(self, key, default=None):
        if key in self.items:
            self.order.remove(key)
            self.order.append(key)
            return self.items[key]
        return default

    def put(self, key, value):
        if len(self.items) > self.limit:
            oldest = self.order.pop(0)
            del self.items[oldest]
        self.items[key] = value
        self.order.append(key)

    def load(self, path):
        for line in open(path):
            key, value = line.split("=")
            self.put(key, value)
'''
ARTICLE = """The town's water works counts on 43 pumps, most of them older than the people who look after them.
Since spring each has a sensor that reports temperature and vibration every quarter of an hour. The readings go to a
small computer in the control room, which learns what is usual for each pump and calls the engineer on duty when
something is not. In the first half year it called eleven times. Nine of these were bearings that would have failed
within weeks; two were a gate that had been left open in winter. The engineers say that they would not give it back, and
that it should learn about gates."""
PROMPTS = [
    ("code, Python", "Write a Python function that merges overlapping intervals, with type hints and a docstring."),
    ("code, C++", "Write a C++17 class for a ring buffer of fixed size with push, pop, size and iteration."),
    ("explanation", "Explain to a student how a hash table deals with collisions, and what each way costs."),
    ("summary", "Summarise this in three sentences:\n\n" + ARTICLE),
    ("question", "Which planets of the solar system have rings? Answer in one sentence."),
    ("translation", "Translate into French:\n\n" + ARTICLE),
    ("short story", "Write a short story of two paragraphs about a lighthouse keeper who collects clocks."),
    ("mathematics", "A tank is filled by one pipe in 6 hours and by another in 9 hours. A drain empties it in 18 "
                    "hours. How long does it take to fill with all three open? Work step by step."),
    ("code review", "Review this Python class. Name every bug and every slow part, then write it anew.\n" + REVIEW),
]
TOOL = {"type": "function", "function": {
    "name": "read_file", "description": "Reads a file", "parameters": {
        "type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}}}


class Reply:
    """What came back, and when: seconds after the request was sent."""

    def __init__(self):
        self.text = ""
        self.first_s = self.last_s = None
        self.n_chunk = 0
        self.usage, self.timings = {}, {}

    def n_predicted(self):
        return self.timings.get("predicted_n") or self.usage.get("completion_tokens") or self.n_chunk

    def tokens_per_second(self):
        if self.n_predicted() < 2:
            return 0.0
        if self.timings.get("predicted_per_second"):
            return self.timings["predicted_per_second"]
        seconds = (self.last_s or 0) - (self.first_s or 0)
        return (self.n_predicted() - 1) / seconds if seconds > 0 else 0.0

    def n_cached(self):
        return self.timings.get("cache_n", (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))

    def n_processed(self):
        return self.timings.get("prompt_n", self.usage.get("prompt_tokens", 0) - self.n_cached())


def ask(o, messages, **more):
    """Streams a chat completion."""
    url = o.url.rstrip("/")
    body = {"model": o.model, "messages": messages, "max_tokens": o.max_tokens, "stream": True,
            "stream_options": {"include_usage": True}, "temperature": o.temperature, "seed": o.seed, **more}
    request = urllib.request.Request((url if url.endswith("/v1") else url + "/v1") + "/chat/completions",
                                     json.dumps(body).encode(),
                                     {"Content-Type": "application/json", "Authorization": "Bearer " + o.key})
    reply, start = Reply(), time.monotonic()
    with urllib.request.urlopen(request, timeout=o.timeout) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise RuntimeError(chunk["error"].get("message", "the server failed"))
            reply.usage = chunk.get("usage") or reply.usage
            reply.timings = chunk.get("timings") or reply.timings
            for choice in chunk.get("choices", []):
                delta = choice.get("delta", {})
                text = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")
                if not text and not delta.get("tool_calls"):
                    continue
                reply.text += delta.get("content") or ""
                reply.n_chunk += 1
                reply.last_s = time.monotonic() - start
                reply.first_s = reply.first_s if reply.first_s is not None else reply.last_s
    return reply


def percent(part, whole):
    return f"{100 * part / whole:.1f} %" if whole else "-"


def nine_prompts(o):
    columns = ("predicted", 9), ("drafted", 8), ("accepted", 8), ("rate", 8), ("tokens/s", 9), ("first token", 12)
    print(f"{'prompt':14}", *(name.rjust(width) for name, width in columns))
    sums, seconds, n_timed = [0, 0, 0], 0.0, 0
    for name, text in PROMPTS:
        r = ask(o, [{"role": "user", "content": text}])
        drafted, accepted = r.timings.get("draft_n", 0), r.timings.get("draft_n_accepted", 0)
        rate = r.tokens_per_second()
        print(f"{name:14} {r.n_predicted():9} {drafted or '-':>8} {accepted or '-':>8} {percent(accepted, drafted):>8} "
              f"{rate:9.1f} {(r.first_s or 0) * 1000:9.0f} ms", flush=True)
        for i, n in enumerate((r.n_predicted(), drafted, accepted)):
            sums[i] += n
        seconds += r.n_predicted() / rate if rate else 0
        n_timed += r.n_predicted() if rate else 0
    print(f"{'all':14} {sums[0]:9} {sums[1] or '-':>8} {sums[2] or '-':>8} {percent(sums[2], sums[1]):>8} "
          f"{n_timed / seconds if seconds else 0:9.1f}")


def replay(o):
    """A tool loop: each step sends the conversation so far with one more call and its result."""
    system = "You are an assistant that reads files.\n" + "\n".join(
        f"Rule {i}: {ARTICLE}" for i in range(max(1, o.prefix // 130)))
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "Read the files and report."}]
    print(f"{'step':>4} {'prompt':>8} {'processed':>10} {'cached':>8} {'first token':>12} {'tokens/s':>9}")
    n_processed = n_prompt = 0
    for i in range(o.replay):
        r = ask(o, messages, tools=[TOOL])
        n_prompt = r.n_processed() + r.n_cached()
        n_processed += r.n_processed()
        print(f"{i:4} {n_prompt:8} {r.n_processed():10} {r.n_cached():8} {(r.first_s or 0) * 1000:9.0f} ms "
              f"{r.tokens_per_second():9.1f}", flush=True)
        arguments = json.dumps({"path": f"notes/{i}.txt"})
        messages += [{"role": "assistant", "content": r.text or None, "tool_calls": [{
            "id": f"call_{i}", "type": "function", "function": {"name": "read_file", "arguments": arguments}}]},
            {"role": "tool", "tool_call_id": f"call_{i}", "content": f"File {i}. " + ARTICLE * (o.append // 130 + 1)}]
    print(f"rows processed: {n_processed}, {percent(n_processed, n_prompt)} of the last prompt")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("url")
    p.add_argument("--model", default="any")
    p.add_argument("--key", default="none")
    p.add_argument("--max-tokens", type=int, default=256)
    p.add_argument("--temperature", type=float, default=0)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--timeout", type=float, default=600)
    p.add_argument("--replay", type=int, metavar="STEPS", help="a tool loop instead of the prompts")
    p.add_argument("--prefix", type=int, default=4000, help="tokens of the system message of the loop, roughly")
    p.add_argument("--append", type=int, default=200, help="tokens that each step appends, roughly")
    o = p.parse_args()
    try:
        replay(o) if o.replay else nine_prompts(o)
    except urllib.error.HTTPError as e:
        sys.exit(f"bench_requests: {o.url} answered {e.code}: {e.read(2000).decode('utf-8', 'replace')}")
    except (OSError, RuntimeError, ValueError, http.client.HTTPException) as e:
        sys.exit(f"bench_requests: {o.url}: {e}")


if __name__ == "__main__":
    main()
