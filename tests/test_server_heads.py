"""Heads and bodies as HTTP/1.1 frames them: lines that are no headers, sizes, what a client that waits or is late is
told. See server_rig.py."""
import gzip
import json
import signal
import socket
import unittest
import zlib

from server_rig import BaseServer, Server, serve_with

LAST = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
CHUNKED = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"

#: The clock is ahead by 1000 s once there is a file of the name in LATER.
LATER_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t which, struct timespec* to) {
    static int (*real)(clockid_t, struct timespec*);
    if (!real) real = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
    const int result = real(which, to);
    const char* path = getenv("LATER");
    if (which == CLOCK_MONOTONIC && path && access(path, F_OK) == 0) to->tv_sec += 1000;
    return result;
}
"""


class Heads(BaseServer):
    OPTIONS = ("--ctx", "256", "--temp", "0", "--max-body", "1M")

    def alone(self, status, answer, *words):
        """One answer, with this status and these words, to bytes that hold a second request."""
        self.assertEqual((answer.count(b"HTTP/1.1 "), answer[9:12]), (1, str(status).encode()), answer)
        self.assertIn(b"\r\nConnection: close\r\n", answer)
        message = json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]["message"]
        for word in words:
            self.assertIn(word, message)

    def test_a_line_that_is_no_header_is_refused(self):
        """It was passed over: where it had the length of the body, the body ran as a request."""
        n = len(LAST)
        for line in (b"Content-Length : %d" % n, b"Content-Length\t: %d" % n, b" Content-Length: %d" % n,
                     b"\tContent-Length: %d" % n, b"X: y\r\n Content-Length: %d" % n, b"X: y\r\n\tz", b"Content-Length",
                     b"Transfer-Encoding : chunked", b"Host : evil.example", b": %d" % n, b"X\x80: y", b"(X): y",
                     b"X: y\nContent-Length: %d" % n, b"X: y\rContent-Length: %d" % n,
                     b"X: y\r\rContent-Length: %d" % n,
                     b"Content-Length: %d\r" % n, b"Content-Length: %d\0" % n, b"X\r\nContent-Length: %d" % n):
            for before in (b"", b"Host: localhost\r\n"):
                data = b"POST /tokenize HTTP/1.1\r\n" + before + line + b"\r\n\r\n"
                with self.subTest(data):
                    self.alone(400, self.server.raw(data + LAST, timeout=10), "a line of the request's head")
        self.alone(400, self.server.raw(b"GET /health HTTP/1.1\nHost: localhost\n\n" + LAST, timeout=10), "line feed")

    def test_a_length_without_a_value_is_refused(self):
        for name in (b"Content-Length", b"transfer-encoding"):
            for value in (b"", b" \t"):
                data = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n" + name + b":" + value + b"\r\n\r\n"
                self.alone(400, self.server.raw(data + LAST, timeout=10), name.decode().lower() + " has no value")

    def test_a_length_in_the_encoding_of_a_url_is_refused(self):
        for line in (b"Content-Length: %36%30", b"Content-Length: 6%30", b"Transfer-Encoding: %63hunked"):
            data = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n" + line + b"\r\n\r\n"
            with self.subTest(data):
                self.alone(400, self.server.raw(data + LAST, timeout=10), "has a % in it")

    def test_headers_of_all_kinds_are_taken(self):
        head = b"GET /health HTTP/1.1\r\n" + b"".join(line + b"\r\n" for line in (
            b"hOST:localhost", b"X-Empty:", b"X-Blank: \t", b"!#$%&'*+-.^_`|~09: a:b : c", b"X: \xc3\xa9\xff",
            b"Ranger: a", b"Range: bytes=0-1", b"Y: " + b"z" * 8187))
        self.assertEqual(self.server.raw(head + b"\r\n" + LAST).count(b"HTTP/1.1 200 OK"), 2)

    def test_lines_that_are_too_long_are_named(self):
        self.alone(431, self.server.raw(b"GET /health HTTP/1.1\r\nY: " + b"z" * 8188 + b"\r\n\r\n" + LAST, timeout=10),
                   "a line of the request's head is larger than 8192 bytes")
        self.alone(431, self.server.raw(b"GET /health HTTP/1.1\r\n" + b"Y: z\r\n" * 12000 + LAST, timeout=10),
                   "the head of the request is larger than 65536 bytes")
        self.alone(414, self.server.raw(b"GET /?" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n" + LAST, timeout=10),
                   "the first line of the request is larger than 8192 bytes")

    def test_a_first_line_that_is_not_understood_is_explained(self):
        for line in (b"FOO /health HTTP/1.1", b"GET /health", b"GET /health HTTP/2.0"):
            self.alone(400, self.server.raw(line + b"\r\nHost: localhost\r\n\r\n" + LAST, timeout=10),
                       "its first line is none of HTTP/1.1, expected a method such as POST, a path and HTTP/1.1")

    def test_headers_mean_the_same_over_every_version_of_the_library(self):
        # Each of these was answered otherwise by some version of cpp-httplib that saw it.
        def answer(*lines):
            return self.server.raw(b"".join((b"GET /health HTTP/1.1\r\n", *(line + b"\r\n" for line in lines), b"\r\n",
                                             LAST)), timeout=10)
        websocket = (b"Upgrade: websocket", b"Connection: Upgrade", b"Sec-WebSocket-Version: 13",
                     b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
        for lines in ([b"Y: z"] * 101, [b"Accept: text/html;q=2,"], [b"Accept: json"], [b"Range: none"], [b"Y: \x01"],
                      [b"Expect: 100-continue"], websocket):
            got = answer(*lines)
            self.assertEqual(got.count(b"HTTP/1.1 200 OK"), 2, (lines[0], got))
            self.assertEqual(got.lower().count(b"content-length: "), 2, lines[0])
        self.assertNotIn(b"Content-Encoding", answer(b"Accept-Encoding: gzip, br, zstd"))
        got = answer(b"Host: localhost", b"Host: localhost")
        self.assertIn(b"400", got.split(b"\r\n")[0])
        self.assertIn(b"Host is given twice, expected it once", got)

    def test_headers_after_a_body_are_limited(self):
        def answer(n):
            return self.server.raw(CHUNKED + b'11\r\n{"content": "ab"}\r\n0\r\n' + b"Y: z\r\n" * n + b"\r\n" + LAST)
        self.assertEqual(answer(10000).count(b"HTTP/1.1 200 OK"), 2)
        self.alone(431, answer(12000), "the headers after the body are larger than 65536 bytes")

    def test_what_is_no_chunk_is_named(self):
        self.alone(400, self.server.raw(CHUNKED + b"x\r\n" + LAST, timeout=10), "not in chunks as its head states")

    def test_a_client_that_waits_is_told_whether_to_send_its_body(self):
        def head(path, **headers):
            lines = {"Host": "localhost", "Expect": "100-continue", **headers}
            return f"POST {path} HTTP/1.1\r\n".encode() + b"".join(
                f"{k.replace('_', '-')}: {v}\r\n".encode() for k, v in lines.items()) + b"\r\n"

        for status, data in ((413, head("/tokenize", Content_Length=2 << 20)), (404, head("/none", Content_Length=9)),
                             (400, head("/tokenize", Content_Length="x")),
                             (403, head("/tokenize", Content_Length=9, Host="evil.example")),
                             (415, head("/tokenize", Content_Length=9, Content_Type="multipart/form-data"))):
            with self.subTest(status):
                self.alone(status, self.server.raw(data + LAST, timeout=10))
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=30) as s:
            s.sendall(head("/tokenize", Content_Length=17, Connection="close"))
            self.assertEqual(s.recv(4096), b"HTTP/1.1 100 Continue\r\n\r\n")
            s.sendall(b'{"content": "ab"}')
            self.assertIn(b"HTTP/1.1 200 OK", s.recv(4096))

    def test_a_compressed_body_may_have_several_members(self):
        text = json.dumps({"content": "ab " * 30000}).encode()
        n = len(self.ok(self.server.post("/tokenize", text))["tokens"])

        def post(body, name="gzip"):
            return self.server.request("POST", "/tokenize", body, {"Content-Encoding": name})
        for cuts in ((7,), (0, 50000, 50000), tuple(range(0, 90000, 900))):
            parts = [text[a:b] for a, b in zip((0, *cuts), (*cuts, len(text)))]
            self.assertEqual(len(self.ok(post(b"".join(map(gzip.compress, parts))))["tokens"]), n)
        member = gzip.compress(text)
        for body, name in ((member + member[:9], "gzip"), (member + zlib.compress(b" "), "gzip"),
                           (member + b"x", "gzip"), (zlib.compress(text) + zlib.compress(b" "), "deflate")):
            self.refused(400, "invalid_request_error", post(body, name), "the body ended early")


class Bodies(unittest.TestCase):
    def begin(self, server, n):
        """A connection whose head was read, with a body of n bytes to come."""
        s = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        self.addCleanup(s.close)
        s.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n")
        s.sendall(b"Content-Length: %d\r\n\r\n" % n)
        self.assertEqual(s.recv(4096), b"HTTP/1.1 100 Continue\r\n\r\n")
        return s

    def test_one_that_is_being_read_when_the_server_stops(self):
        """Its client was told that it was not as its head states."""
        server = Server("--ctx", 256)
        s = self.begin(server, 17)
        s.sendall(b'{"content')
        server.process.send_signal(signal.SIGTERM)
        answer = b""
        while part := s.recv(4096):
            answer += part
        self.assertEqual(server.stop()[0], 0)
        self.assertEqual(answer[:12], b"HTTP/1.1 503", answer)
        self.assertIn(b"the server is stopping", answer)

    def test_one_that_is_late_is_refused_while_its_bytes_come(self):
        server, later = serve_with(self, LATER_CLOCK, "LATER", "--ctx", 256)
        body = json.dumps({"content": "a", "user": "x" * (4 << 20)}).encode()
        s = self.begin(server, len(body))
        with open(later, "w"):
            pass
        s.sendall(body)
        self.assertIn(b"HTTP/1.1 408", s.recv(4096))
        self.assertEqual(server.stop()[0], 0)


if __name__ == "__main__":
    unittest.main()
