#!/usr/bin/env python3
"""Asks any endpoint of OpenAI's chat protocol nine kinds of questions, and prints what was drafted and how fast it was.

  tools/bench_requests.py URL                      nine prompts, one after the other
  tools/bench_requests.py URL --replay 20          a tool loop of 20 steps: rows appended, processed and cached
  tools/bench_requests.py URL --beside "auspex run -m MODEL --ctx 4096 -n 1500 -p 'def main():'"
                                                   the same text from this command and from the server by turns

URL is that of the server, with or without /v1. Drafts and rows come from `timings` (auspex, llama.cpp), where the
server sends them; without them tokens and times are those that the client sees, and drafts are "-". Rates are those of
decoding, from the first token to the last; a reply of one token has none.

Python's standard library only.
"""
import argparse
import http.client
import json
import os
import shlex
import statistics
import subprocess
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
ARTICLE_TOKENS = 130  # roughly
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
        self.text = self.reasoning = ""
        self.calls = []
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
        return self.timings.get("cache_n", (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)

    def n_processed(self):
        return self.timings.get("prompt_n", (self.usage.get("prompt_tokens") or 0) - self.n_cached())

    def n_context(self):
        """Rows of the prompt and of the reply."""
        return self.n_cached() + self.n_processed() + self.n_predicted()

    def take(self, delta, seconds):
        """One piece of the stream."""
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        if not (delta.get("content") or reasoning or delta.get("tool_calls")):
            return
        self.text += delta.get("content") or ""
        self.reasoning += reasoning or ""
        for part in delta.get("tool_calls") or []:
            index = part.get("index")
            if index is None:  # some servers give whole calls without one
                index = len(self.calls)
            if not 0 <= index <= len(self.calls):
                raise RuntimeError(f"a call has index {index}, expected 0 to {len(self.calls)}")
            if index == len(self.calls):
                self.calls.append({"id": part.get("id"), "type": "function", "function": {"name": "", "arguments": ""}})
            for key in ("name", "arguments"):
                self.calls[index]["function"][key] += (part.get("function") or {}).get(key) or ""
        self.n_chunk += 1
        self.last_s = seconds
        self.first_s = self.first_s if self.first_s is not None else seconds


def stream(o, path, body):
    """The chunks of a streamed answer, each with the seconds since the request was sent."""
    url = o.url.rstrip("/")
    body = {"model": o.model, "max_tokens": o.max_tokens, "stream": True, "stream_options": {"include_usage": True},
            "temperature": o.temperature, "seed": o.seed, **body}
    request = urllib.request.Request((url if url.endswith("/v1") else url + "/v1") + path, json.dumps(body).encode(),
                                     {"Content-Type": "application/json", "Authorization": "Bearer " + o.key})
    start = time.monotonic()
    with urllib.request.urlopen(request, timeout=o.timeout) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if error := chunk.get("error"):
                raise RuntimeError(error.get("message") or "the server failed" if isinstance(error, dict) else error)
            yield chunk, time.monotonic() - start


def ask(o, messages, **more):
    """Streams a chat completion."""
    reply = Reply()
    for chunk, seconds in stream(o, "/chat/completions", {"messages": messages, **more}):
        reply.usage = chunk.get("usage") or reply.usage
        reply.timings = chunk.get("timings") or reply.timings
        for choice in chunk.get("choices") or []:
            reply.take(choice.get("delta") or {}, seconds)
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


def answered(reply, i, o):
    """The messages that follow a reply: itself, and a result for each call. A reply without calls gets one."""
    arguments = json.dumps({"path": f"notes/{i}.txt"})
    calls = reply.calls or [{"id": f"call_{i}", "type": "function",
                             "function": {"name": "read_file", "arguments": arguments}}]
    said = {"role": "assistant", "content": reply.text or None, "tool_calls": calls}
    if reply.reasoning:
        said["reasoning_content"] = reply.reasoning
    text = f"File {i}. " + (ARTICLE + "\n") * max(1, round(o.append / ARTICLE_TOKENS))
    return [said] + [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in calls]


def replay(o):
    """A tool loop: each step sends the conversation so far with the last reply's call and its result."""
    system = "You are an assistant that reads files.\n" + "\n".join(
        f"Rule {i}: {ARTICLE}" for i in range(max(1, round(o.prefix / ARTICLE_TOKENS))))
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "Read the files and report."}]
    print(f"{'step':>4} {'prompt':>8} {'appended':>9} {'processed':>10} {'cached':>8} {'first token':>12} "
          f"{'tokens/s':>9}")
    n_context = n_appended = n_processed = 0
    first_s = []
    for i in range(o.replay):
        r = ask(o, messages, tools=[TOOL])
        appended = r.n_processed() + r.n_cached() - n_context
        print(f"{i:4} {r.n_processed() + r.n_cached():8} {appended:9} {r.n_processed():10} {r.n_cached():8} "
              f"{(r.first_s or 0) * 1000:9.0f} ms {r.tokens_per_second():9.1f}", flush=True)
        n_context = r.n_context()
        if i:
            n_appended += appended
            n_processed += r.n_processed()
            first_s.append(r.first_s or 0)
        messages += answered(r, i, o)
        if o.titles:
            ask(o, [{"role": "user", "content": "Write a title of five words for this conversation:\n" +
                     messages[-1]["content"]}], max_tokens=16)
    if first_s:
        print(f"after the first step: {n_appended} rows appended, {n_processed} processed "
              f"({n_processed / max(1, n_appended):.4f}), first token "
              f"{statistics.median(first_s) * 1000:.0f} ms (median)")


def streamed_by_command(command):
    """(text, seconds from its first bytes to its end) of a program that writes to a pipe."""
    text, first, last = b"", None, None
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as program:
        while piece := os.read(program.stdout.fileno(), 65536):
            last = time.monotonic()
            first = first or last
            text += piece
    if program.returncode or not text:
        raise RuntimeError(f"{command[0]} ended with exit code {program.returncode} and {len(text)} bytes")
    return text.decode("utf-8", "replace"), last - first


def streamed_by_server(o, prompt, n):
    reply = Reply()
    for chunk, seconds in stream(o, "/completions", {"prompt": prompt, "max_tokens": n, "temperature": 0}):
        reply.usage = chunk.get("usage") or reply.usage
        for choice in chunk.get("choices") or []:
            reply.take({"content": choice.get("text")}, seconds)
    return reply


def value_of(command, option):
    """What follows this option in the command."""
    if option not in command[:-1]:
        raise ValueError(f"--beside {shlex.join(command)}: the command has no {option} with a value")
    return command[command.index(option) + 1]


def beside(o):
    """The speed of the server over that of a command, which must be greedy and have -n and -p."""
    command = shlex.split(o.beside)
    n, prompt = int(value_of(command, "-n")), value_of(command, "-p")
    ratios = []
    for i in range(o.repeat):
        text, alone_s = streamed_by_command(command)
        reply = streamed_by_server(o, prompt, n)
        if reply.text.strip() != text.removeprefix(prompt).strip():
            raise RuntimeError("the command and the server wrote different texts; give both the same options")
        n_step, served_s = reply.n_predicted() - 1, (reply.last_s or 0) - (reply.first_s or 0)
        if not (n_step > 0 and alone_s > 0 and served_s > 0):
            raise RuntimeError(f"{n_step + 1} tokens came at once, which has no speed; give a larger -n")
        ratios.append(alone_s / served_s)
        print(f"{i:4} command {n_step / alone_s:8.1f} tokens/s, server {n_step / served_s:8.1f}, "
              f"ratio {ratios[-1]:.3f}", flush=True)
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    print(f"server / command: {middle:.3f} (median of {len(ratios)}, quartiles {low:.3f} and {high:.3f})")


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
    p.add_argument("--titles", action="store_true", help="asks for a title after each step, as front ends do")
    p.add_argument("--beside", metavar="COMMAND", help="a command that streams the same text")
    p.add_argument("--repeat", type=int, default=9, help="pairs of --beside")
    o = p.parse_args()
    for name in ("replay", "repeat", "max_tokens"):
        if getattr(o, name) is not None and getattr(o, name) < 1:
            p.error(f"--{name.replace('_', '-')} {getattr(o, name)}: expected 1 or more")
    try:
        beside(o) if o.beside is not None else replay(o) if o.replay else nine_prompts(o)
    except urllib.error.HTTPError as e:
        sys.exit(f"bench_requests: {o.url} answered {e.code}: {e.read(2000).decode('utf-8', 'replace')}")
    except (OSError, RuntimeError, ValueError, http.client.HTTPException) as e:
        sys.exit(f"bench_requests: {o.url}: {e}")


if __name__ == "__main__":
    main()
