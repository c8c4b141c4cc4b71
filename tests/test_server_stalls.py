"""The server beside clients that are slow, send much or take nothing, and how it ends. See server_rig.py."""
import errno
import multiprocessing
import os
import resource
import shutil
import signal
import socket
import subprocess
import threading
import time
import unittest

from server_rig import SERVER, Server, serve_with

#: accept() fails once with the number in the file that FAIL_ONCE names.
FAIL_ONCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
static int fails(void) {
    const char* path = getenv("FAIL_ONCE");
    FILE* f = fopen(path, "r");
    int number = 0;
    if (!f) return 0;
    if (fscanf(f, "%d", &number) != 1) number = 0;
    fclose(f);
    remove(path);
    errno = number;
    return number != 0;
}
int accept(int fd, struct sockaddr* from, socklen_t* n) {
    return fails() ? -1 : ((int (*)(int, struct sockaddr*, socklen_t*))dlsym(RTLD_NEXT, "accept"))(fd, from, n);
}
int accept4(int fd, struct sockaddr* from, socklen_t* n, int flags) {
    return fails() ? -1
                   : ((int (*)(int, struct sockaddr*, socklen_t*, int))dlsym(RTLD_NEXT, "accept4"))(fd, from, n, flags);
}
"""


#: No thread starts while there is a file with the name in NO_THREADS.
NO_THREADS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
int pthread_create(pthread_t* thread, const pthread_attr_t* with, void* (*start)(void*), void* argument) {
    if (access(getenv("NO_THREADS"), F_OK) == 0) return EAGAIN;
    return ((int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*))dlsym(RTLD_NEXT, "pthread_create"))(
        thread, with, start, argument);
}
"""


class SlowClients(unittest.TestCase):
    def test_a_connection_without_a_request_is_closed(self):
        server = Server("--ctx", 256, "--head-seconds", 1)
        try:
            self.assertEqual(server.raw(b"", timeout=10), b"")
        finally:
            self.assertEqual(server.stop()[0], 0)

    def test_more_idle_connections_than_descriptors(self):
        """Nobody was served until one of them ended by itself."""
        server = Server("--ctx", 256, "--head-seconds", 600)
        try:
            pid = server.process.pid
            n_open = len(os.listdir(f"/proc/{pid}/fd"))
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (n_open + 4, n_open + 4))
            for _ in range(6):
                self.addCleanup(socket.create_connection(("127.0.0.1", server.port)).close)
            self.assertEqual(server.get("/health").status, 200)
        finally:
            self.assertEqual(server.stop()[0], 0)

    def test_a_slow_head_is_refused_in_time(self):
        server = Server("--ctx", 256, "--head-seconds", 1)
        try:
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
                answer = b""
                for letter in b"GET /health HTTP/1.1\r\n":
                    s.sendall(bytes([letter]))
                    s.settimeout(0.1)
                    try:
                        answer = s.recv(4096)
                        break
                    except TimeoutError:
                        pass
                self.assertIn(b"408", answer)
        finally:
            self.assertEqual(server.stop()[0], 0)


    def test_a_body_that_pauses_is_refused_and_a_slow_one_is_not(self):
        server = Server("--ctx", 256, "--head-seconds", 2)
        try:
            body = b'{"content": "ab"}'
            head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
                s.sendall(head + body[:5])
                start = time.time()
                self.assertIn(b"408", s.recv(4096))
                self.assertLess(time.time() - start, 5)
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
                s.sendall(head)
                for i in range(len(body)):
                    s.sendall(body[i:i + 1])
                    time.sleep(0.2)
                self.assertIn(b"200 OK", s.recv(4096))
        finally:
            self.assertEqual(server.stop()[0], 0)

    def slow_bodies(self, server, n):
        """Connections with the beginning of a body."""
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[1], 4096), limits[1]))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        slow = []
        for _ in range(n):
            slow.append(socket.create_connection(("127.0.0.1", server.port)))
            self.addCleanup(slow[-1].close)
            slow[-1].sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
        return slow

    def test_slow_bodies_make_room_for_others(self):
        """Bodies of which a byte comes now and then once held all threads for two minutes."""
        server = Server("--ctx", 256, "--head-seconds", 1)
        try:
            slow = self.slow_bodies(server, 1024)
            stop, start = threading.Event(), time.time()

            def drip():
                while not stop.wait(0.5):
                    for s in slow:
                        try:
                            s.send(b" ")
                        except OSError:
                            pass  # this one made room

            thread = threading.Thread(target=drip)
            thread.start()
            try:
                self.assertEqual(server.get("/health", timeout=20).status, 200)
            finally:
                stop.set()
                thread.join()
            self.assertLess(time.time() - start, 10)
        finally:
            self.doCleanups()
            self.assertEqual(server.stop()[0], 0)

    def test_a_slow_body_makes_no_room_when_nobody_waits_any_more(self):
        server = Server("--ctx", 256, "--head-seconds", 2)
        try:
            slow = self.slow_bodies(server, 1024)
            waiting = socket.create_connection(("127.0.0.1", server.port), timeout=20)
            waiting.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            time.sleep(0.5)
            slow.pop().close()
            self.assertIn(b"200 OK", waiting.recv(4096))
            waiting.close()
            self.doCleanups()
            body = b'{"content": "ab"}'
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
                s.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body))
                for i in range(len(body)):
                    s.sendall(body[i:i + 1])
                    time.sleep(0.2)
                self.assertIn(b"200 OK", s.recv(4096))
        finally:
            self.doCleanups()
            self.assertEqual(server.stop()[0], 0)

    def test_bodies_are_bounded_together(self):
        server = Server("--ctx", 256, "--max-body", "33M", "--head-seconds", 60)  # 66 MiB together

        def post(n):
            s = socket.create_connection(("127.0.0.1", server.port), timeout=30)
            s.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % n)
            return s

        body = "a" * 2_000_000  # no JSON: refused as soon as it is read
        try:
            large = [post(33 << 20), post(33 << 20)]
            for s in large:
                s.sendall(b" " * ((32 << 20) + (900 << 10)))
            start = time.time()
            while (answer := server.post("/tokenize", body)).status != 503:  # until all of them has arrived
                self.assertLess(time.time() - start, 30)
            self.assertEqual(answer.headers["retry-after"], "1")
            self.assertIn("exceed 69206016 bytes", answer.json["error"]["message"])
            for s in large:
                s.close()
            start = time.time()
            while server.post("/tokenize", body).status != 400:
                self.assertLess(time.time() - start, 30)
        finally:
            self.assertEqual(server.stop()[0], 0)


@unittest.skipUnless(shutil.which("gcc"), "needs gcc")
class Accepting(unittest.TestCase):
    def setUp(self):
        self.server, self.path = serve_with(self, FAIL_ONCE, "FAIL_ONCE", "--ctx", 2048, "--temp", 2, "--draft", "off")

    def fail_once(self, number):
        with open(self.path + ".new", "w") as f:
            f.write(str(number))
        os.rename(self.path + ".new", self.path)

    def test_one_that_fails_is_tried_again(self):
        """The server once took no connection any more, without a word."""
        with self.server.open_stream("/v1/completions", {"prompt": "Hello", "max_tokens": 200, "seed": 3}) as s:
            data = s.recv(65536)
            for number in (errno.ENFILE, errno.ECONNABORTED, errno.ENOMEM, errno.ENOBUFS, errno.EMFILE):
                self.fail_once(number)
                self.assertEqual(self.server.get("/health").status, 200)
                self.assertFalse(os.path.exists(self.path))
            while b"[DONE]" not in data:
                part = s.recv(65536)
                self.assertTrue(part, data)
                data += part
        code, log = self.server.stop()
        self.assertEqual(code, 0, log)
        self.assertEqual(log.count("cannot accept a connection now, trying again: Too many open files"), 1, log)

    def test_a_socket_that_is_lost_ends_the_server_with_an_error(self):
        self.fail_once(errno.EBADF)
        with socket.create_connection(("127.0.0.1", self.server.port)):
            self.server.process.wait(timeout=60)
        code, log = self.server.stop()
        self.assertEqual(code, 1, log)
        self.assertIn("no connection can be accepted any more: Bad file descriptor", log)


class Threads(unittest.TestCase):
    def ask(self, connection):
        """A request, and its whole answer; the connection stays open."""
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b""
        while b'"ok"}' not in answer:
            part = connection.recv(4096)
            self.assertTrue(part, answer)
            answer += part

    @unittest.skipUnless(shutil.which("gcc"), "needs gcc")
    def test_an_idle_connection_makes_room_where_the_system_has_no_thread_left(self):
        """A client waited until an idle connection ended by itself."""
        server, path = serve_with(self, NO_THREADS, "NO_THREADS", "--ctx", 256)
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as idle:
            self.ask(idle)
            with open(path, "w"):
                pass
            self.assertEqual(server.get("/health", timeout=20).status, 200)
            self.assertEqual(idle.recv(4096), b"")
        os.remove(path)
        self.assertEqual(server.stop()[0], 0)

    def test_clients_that_come_and_go_leave_no_threads_and_end_no_idle_connection(self):
        """24 clients once drove the threads to their limit, where idle connections end for others."""
        server = Server("--ctx", 256)
        until, most = time.time() + 5, 0

        def loop():
            while time.time() < until:
                with socket.create_connection(("127.0.0.1", server.port), timeout=20) as s:
                    self.ask(s)
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as idle:
            clients = [multiprocessing.Process(target=loop) for _ in range(24)]
            for c in clients:
                c.start()
            while time.time() < until:
                most = max(most, len(os.listdir(f"/proc/{server.process.pid}/task")))
                time.sleep(0.01)
            for c in clients:
                c.join()
                self.assertEqual(c.exitcode, 0)
            self.ask(idle)
        self.assertLess(most, 300)
        self.assertEqual(server.stop()[0], 0)


class Ending(unittest.TestCase):
    def test_a_stream_is_told_that_the_server_stops(self):
        for how in (signal.SIGTERM, signal.SIGINT):
            server = Server("--ctx", 2048, "--temp", 2, "--draft", "off")
            with server.open_stream("/v1/completions", {"prompt": "Hello", "max_tokens": 2000, "seed": 3}) as s:
                data = s.recv(65536)
                self.assertIn(b"200 OK", data)
                code, log = server.stop(how)
                while part := s.recv(65536):
                    data += part
            self.assertEqual(code, 0, log)
            self.assertIn(b'data: {"error":{"code":503,"message":"the server is stopping"', data)
            self.assertNotIn(b"[DONE]", data)

    def test_it_ends_beside_a_client_that_takes_nothing(self):
        server = Server("--ctx", 32000, "--temp", 2)
        body = {"prompt": "Hello", "max_tokens": 30000, "seed": 3}
        with server.open_stream("/v1/completions", body) as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            time.sleep(0.5)
            code, log = server.stop()
            self.assertEqual(code, 0, log)
            data = b""
            while part := s.recv(65536):
                data += part
            self.assertNotIn(b"[DONE]", data)

    def test_it_ends_while_it_loads(self):
        """Compiled with -DAUSPEX_SANITIZE=thread it also proves that the loading thread may read the interrupt."""
        for how in (signal.SIGTERM, signal.SIGINT):
            r = subprocess.Popen([SERVER, "--port", "0", "--device", "cpu"], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
            self.assertIn("http://127.0.0.1:", r.stdout.readline())
            r.send_signal(how)
            _, said = r.communicate(timeout=60)
            self.assertEqual(r.returncode, 0, said)

    def test_it_ends_while_it_waits_and_while_connections_are_idle(self):
        server = Server("--ctx", 256)
        idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(5)]
        code, log = server.stop()
        self.assertEqual(code, 0, log)
        for s in idle:
            s.close()

    def test_it_ends_beside_a_thread_that_does_not(self):
        """A request whose thread waits for ever: it tells of itself on a stderr that nobody reads."""
        server = Server("--ctx", 256, "--verbose", stderr=subprocess.PIPE)
        with socket.create_connection(("127.0.0.1", server.port), timeout=1) as s:
            with self.assertRaises(TimeoutError):
                while True:
                    s.sendall(b"GET /v1/models/" + b"a" * 1000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    answer = b""
                    while b"not_found_error" not in answer:
                        answer += s.recv(4096)
            start = time.time()
            code, _ = server.stop()
        self.assertEqual(code, 0)
        self.assertLess(time.time() - start, 15)


if __name__ == "__main__":
    unittest.main()
