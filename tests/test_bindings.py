"""The C interface from other languages: each client in tests/bindings loads the demo, reads an error, streams 32 tokens
and cancels a chat. The binding for Python is in test_capi.py."""
import glob
import os
import shutil
import subprocess
import tempfile
import unittest

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CLIENTS = os.path.join(REPO, "tests", "bindings")
LIBRARY = os.environ.get("AUSPEX_LIBRARY") or os.path.join(REPO, "build", "libauspex.so")
FOLDER = os.path.dirname(os.path.abspath(LIBRARY))
DEMO = os.path.join(REPO, "examples", "models", "auspex-demo.gguf")
TEXT = " vibration=0.2 note: belt inspected, no further action\n2026-03-14 08:15 Pump-"  # 32 tokens


@unittest.skipUnless(os.path.exists(LIBRARY), "needs libauspex.so")
class Bindings(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="auspex-bindings-")
        self.addCleanup(shutil.rmtree, self.folder)

    def need(self, *programs):
        for program in programs:
            if not shutil.which(program):
                self.skipTest(f"{program} is not installed")

    def run_program(self, *command):
        done = subprocess.run(command, cwd=self.folder, capture_output=True, timeout=120, check=False,
                              env={**os.environ, "LD_LIBRARY_PATH": FOLDER, "VK_ICD_FILENAMES": ""})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout.decode()

    def check(self, *command):
        lines = self.run_program(*command).splitlines()
        self.assertRegex(lines[0], "cannot open 'no-such-file.gguf'")
        self.assertEqual("\n".join(lines[1:-1]), TEXT)
        self.assertRegex(lines[-1], "^cancelled")

    def test_luajit_reads_the_header(self):
        self.need("luajit")
        header = os.path.join(REPO, "src", "auspex.h")
        self.check("luajit", os.path.join(CLIENTS, "client.lua"), header, DEMO)

    def test_rust(self):
        self.need("rustc")
        source = os.path.join(CLIENTS, "client.rs")
        self.run_program("rustc", "-Dwarnings", "-L", FOLDER, "-o", "client", source)
        self.check("./client", DEMO)

    def test_csharp(self):
        self.need("mcs", "mono")
        self.run_program("mcs", "-warnaserror", "-out:Client.exe", os.path.join(CLIENTS, "Client.cs"))
        self.check("mono", "Client.exe", DEMO)

    def test_java(self):
        self.need("javac", "java", "gcc")
        home = os.path.dirname(os.path.dirname(os.path.realpath(shutil.which("javac"))))
        include = os.path.join(home, "include")
        if not glob.glob(os.path.join(include, "jni.h")):
            self.skipTest(f"{include}/jni.h is not installed")
        glue = os.path.join(self.folder, "libclient.so")
        self.run_program("gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-DAUSPEX_C_SHARED",
                         "-I", include, "-I", os.path.join(include, "linux"), "-I", os.path.join(REPO, "src"),
                         os.path.join(CLIENTS, "client_jni.c"), LIBRARY, "-o", glue)
        self.run_program("javac", "-Xlint:all", "-Werror", "-d", ".", os.path.join(CLIENTS, "Client.java"))
        self.check("java", "-Xshare:auto", "-cp", ".", "Client", glue, DEMO)


if __name__ == "__main__":
    unittest.main()
