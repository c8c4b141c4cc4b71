"""The same text on every platform: instruction sets and Vulkan devices of this machine, Windows under wine, ARM.

The program is tests/demo_text.cpp. For ARM it is compiled from the single header, which also shows that this compiles
there without a warning. On Windows the library is compiled once, for this program and for unit tests of numbers, files
and threads, and the syntax of the header is checked. With AUSPEX_TEST_DEEP=1 also 32-bit ARM, and on Windows
the program from the header, all unit tests, the command line, the server and Vulkan.
"""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

from base_rig import GPU_REQUIRED

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DEMO = os.path.join(REPO, "examples", "models", "auspex-demo.gguf")
BINARY = os.environ.get("AUSPEX_BINARY", "")
HERE = os.environ.get("AUSPEX_DEMO_TEXT", "")
DEEP = os.environ.get("AUSPEX_TEST_DEEP") == "1"
WARNINGS = ("-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror")
MINGW = shutil.which("x86_64-w64-mingw32-g++-posix")
WINE = shutil.which("wine64") or shutil.which("wine") or shutil.which("/usr/lib/wine/wine64")
PROMPT = "2026-03-14 08:00 Pump-3"
# A program that gets the Ctrl-C of its console, as does the one that started it, and ends later.
INTERRUPTED = ("SetConsoleCtrlHandler([](DWORD) -> BOOL { return TRUE; }, TRUE); "
               "if (!GenerateConsoleCtrlEvent(CTRL_C_EVENT, 0)) return 1; Sleep(1000); return 130;")
# wine makes a Ctrl-C of an interrupt; by another signal a program of Windows cannot end itself.
WINE_SCRIPT = """#!/bin/sh
{wine} {program} "$@" <&0 &
program=$!
trap 'kill -INT $program' TERM INT
wait $program
code=$?
while kill -0 $program 2>/dev/null; do
    wait $program
    code=$?
done
exit $code
"""
# What relies on nothing of Linux, and is no race of a thousand connections, with which wine is slow.
SERVER_TESTS = ("server_anthropic", "server_constraint", "server_fields", "server_openai", "server_responses",
                "server_slots", "server_stalls.Ending")
TEXT = b" status=nominal temp=62C vibration=0.2 note: belt inspected, no further action\n202\n"  # 24 tokens


def run(command, stdin=None, **environment):
    if "VK_ICD_FILENAMES" in environment:  # the name that newer loaders prefer
        environment["VK_DRIVER_FILES"] = environment["VK_ICD_FILENAMES"]
    if "LP_NATIVE_VECTOR_WIDTH" in environment:  # Mesa's cache would give code for whatever width came first
        environment["MESA_SHADER_CACHE_DISABLE"] = "true"
    return subprocess.run(command, env={**os.environ, **environment}, stdin=stdin, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=600, check=False)


class Base(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="auspex-platforms-")
        self.addCleanup(shutil.rmtree, self.folder, True)

    def need(self, *programs):
        for program in programs:
            if not program or not shutil.which(program):
                self.skipTest(f"{program or 'the compiler or wine'} is not installed")

    def check_text(self, program, path="best", **environment):
        done = run([*program, DEMO, path, "24", PROMPT], **environment)
        if done.returncode == 77:
            why = done.stderr.decode().strip()
            self.assertNotEqual(path, "reference", why)
            if path == "vulkan" and "AUSPEX_NO_VULKAN" not in why:
                self.assertFalse(GPU_REQUIRED, why)
            self.skipTest(why)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, TEXT)
        return done.stderr.decode()

    def driver(self):
        found = glob.glob("/usr/share/vulkan/icd.d/lvp_icd.*.json")
        if not found:
            self.skipTest("the software Vulkan device is not installed")
        return found[0]

    def compile(self, compiler, *options, vulkan=False):
        self.need(compiler)
        program = os.path.join(self.folder, "demo_text.exe")
        ccache = [shutil.which("ccache")] if shutil.which("ccache") else []
        unit = os.path.join(self.folder, "demo_text.o")
        without = [] if vulkan else ["-DAUSPEX_NO_VULKAN"]
        for command in ([*ccache, compiler, *WARNINGS, *options, *without, "-DAUSPEX_IMPLEMENTATION", "-I",
                         os.path.join(REPO, "single_include"), "-c",
                         os.path.join(REPO, "tests", "demo_text.cpp"), "-o", unit],
                        [compiler, unit, "-static", "-pthread", *options, "-o", program]):
            done = run(command)
            self.assertEqual(done.returncode, 0, done.stderr.decode()[-4000:])
        return program


class Here(Base):
    def test_reference(self):
        self.assertIn("reference", self.check_text([HERE], "reference"))

    def test_avx2(self):
        self.check_text([HERE], "avx2")

    def test_avx512(self):
        self.check_text([HERE], "avx512")

    def test_vulkan_with_subgroups_of_4(self):
        self.vulkan("128")

    def test_vulkan_with_subgroups_of_8(self):
        # Most drivers choose this width, so the kernels are in the cache that all tests share.
        if "256 bits" not in self.check_text([HERE], "vulkan", VK_ICD_FILENAMES=self.driver()):
            self.vulkan("256")

    def test_vulkan_with_subgroups_of_16(self):
        self.vulkan("512")

    @unittest.skipUnless(DEEP, "runs with AUSPEX_TEST_DEEP=1")
    def test_swiftshader(self):
        driver = self.manifest("vk_swiftshader")
        self.assertIn("SwiftShader", self.check_text([HERE], "vulkan", VK_ICD_FILENAMES=driver))

    @unittest.skipUnless(BINARY, "needs the auspex program")
    def test_a_device_that_is_refused_is_listed_with_the_reason(self):
        done = run([BINARY, "inspect", "--devices", "--json"], VK_ICD_FILENAMES=self.manifest("VkICD_mock_icd"))
        self.assertEqual(done.returncode, 0, done.stderr)
        gpu, cpu = json.loads(done.stdout)["devices"]
        if gpu["device"] == "vulkan":
            self.skipTest("this build leaves Vulkan out")
        self.assertEqual((gpu["device"], cpu["device"], cpu["status"]), ("vulkan:0", "cpu", "ok"))
        self.assertIn("4 storage buffers a kernel, 12 are needed", gpu["status"])

    def manifest(self, name):
        """Of a driver that Debian's package chromium-common has."""
        library = f"/usr/lib/chromium/lib{name}.so"
        if not os.path.exists(library):
            self.skipTest(f"{library} is not installed (Debian: chromium-common)")
        path = os.path.join(self.folder, "icd.json")
        with open(path, "w") as file:
            json.dump({"file_format_version": "1.0.0", "ICD": {"library_path": library, "api_version": "1.3.0"}}, file)
        return path

    def vulkan(self, bits):
        driver = self.driver()
        name = self.check_text([HERE], "vulkan", VK_ICD_FILENAMES=driver, LP_NATIVE_VECTOR_WIDTH=bits)
        self.assertIn(f"{bits} bits", name)


class Windows(Base):
    def setUp(self):
        super().setUp()
        self.need(MINGW, WINE)
        self.wine = {"WINEPREFIX": os.path.join(self.folder, "wine"), "WINEDEBUG": "-all"}
        self.addCleanup(self.end_wine)
        self.start_wine()

    def start_wine(self):
        """Now and then wine makes a prefix without its own libraries and cannot start in it: it gets another."""
        for _ in range(3):
            done = run([WINE, "cmd", "/c", "exit 7"], **self.wine)
            if done.returncode == 7:
                return
            self.end_wine()
            shutil.rmtree(self.wine["WINEPREFIX"], ignore_errors=True)
        self.fail(f"wine does not start: {done.stderr}")

    def end_wine(self):
        server = shutil.which("wineserver") or shutil.which("/usr/lib/wine/wineserver")
        if server:
            run([server, "-k"], **self.wine)

    def test_text_from_paths_of_every_kind(self):
        # Without unwind tables, whose sections cost the linker a minute.
        options = ("-O0", "-fno-exceptions", "-fno-asynchronous-unwind-tables", "-municode", "-Wa,-mbig-obj")
        if DEEP:
            program = [WINE, self.compile(MINGW, *options)]
        else:
            self.check([MINGW, *WARNINGS, *options, "-DAUSPEX_NO_VULKAN", "-DAUSPEX_IMPLEMENTATION", "-fsyntax-only",
                        "-I", os.path.join(REPO, "single_include"), os.path.join(REPO, "tests", "demo_text.cpp")])
            program = [WINE, os.path.join(self.build_quick("demo_text"), "demo_text.exe")]
        self.check_text(program, **self.wine)
        long = os.path.join(self.folder, *["a folder with a name of forty characters"] * 8)
        for folder in (os.path.join(self.folder, "m\u00f6dels \u65e5\u672c"), long):
            os.makedirs(folder)
            shutil.copy(DEMO, folder)
            done = run([*program, "Z:" + os.path.join(folder, "auspex-demo.gguf"), "best", "1", PROMPT], **self.wine)
            self.assertEqual(done.returncode, 0, done.stderr)

    def headers(self, *names):
        """A folder with these of /usr/include, without the rest of this machine's headers."""
        folder = os.path.join(self.folder, "include")
        os.makedirs(folder)
        for name in names:
            os.symlink(os.path.join("/usr/include", name), os.path.join(folder, name))
        return folder

    @unittest.skipUnless(DEEP, "runs with AUSPEX_TEST_DEEP=1")
    def test_text_on_vulkan(self):
        """wine finds Vulkan through its X11 driver, so it wants a display."""
        self.need("Xvfb")
        headers = self.headers("vulkan", "vk_video", "volk.h", "volk.c")
        program = self.compile(MINGW, "-O1", "-fno-exceptions", "-fno-asynchronous-unwind-tables", "-municode",
                               "-Wa,-mbig-obj", "-isystem", headers, vulkan=True)
        receiver, sender = os.pipe()
        with subprocess.Popen(["Xvfb", "-displayfd", str(sender)], pass_fds=[sender], stderr=subprocess.DEVNULL) as x:
            try:
                display = ":" + os.read(receiver, 16).decode().strip()
                for bits in ("128", "256", "512"):
                    name = self.check_text([WINE, program], "vulkan", VK_ICD_FILENAMES=self.driver(), DISPLAY=display,
                                           LP_NATIVE_VECTOR_WIDTH=bits, **self.wine)
                    self.assertIn(f"{bits} bits", name)
            finally:
                self.end_wine()
                x.terminate()
                os.close(receiver)
                os.close(sender)

    def build(self, folder, *targets, options):
        headers = self.headers("CLI", "nlohmann", "stb", "doctest")
        found = [f"-DAUSPEX_{name}={headers}" for name in ("CLI11", "NLOHMANN", "STB", "DOCTEST")]
        self.check(["cmake", "-S", REPO, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                    f"-DCMAKE_TOOLCHAIN_FILE={REPO}/cmake/mingw.cmake", "-DAUSPEX_WERROR=ON", "-DAUSPEX_STATIC=ON",
                    "-DAUSPEX_NO_VULKAN=ON", "-DAUSPEX_UNITY_CLI=ON", "-DAUSPEX_SHARED=OFF", "-DAUSPEX_BENCH=OFF",
                    "-DAUSPEX_SERVER=OFF", *found, *options])
        self.check(["cmake", "--build", folder, "--target", *targets])

    def check(self, command):
        done = subprocess.run(command, env={**os.environ, **self.wine, "AUSPEX_TEST_DEEP": "0"}, timeout=2400,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        self.assertEqual(done.returncode, 0, done.stdout.decode(errors="replace")[-4000:])

    def build_quick(self, target):
        """With the options that compile fastest, without the AVX-512 kernels, into one folder for all tests."""
        folder = os.path.join(REPO, "build", "windows-quick")
        files = "base;invariants;matmul;number;ops;packed_file;part_log;pool;session_file"
        self.build(folder, target, options=["-DAUSPEX_UNITY_GROUPS=ON", "-DAUSPEX_NO_AVX512=ON",
                                            "-DCMAKE_CXX_FLAGS_RELEASE=-O1", f"-DAUSPEX_TEST_FILES={files}"])
        return folder

    @unittest.skipIf(DEEP, "AUSPEX_TEST_DEEP=1 compiles the server")
    def test_what_the_server_has_of_windows_is_valid(self):
        headers = self.headers("CLI", "nlohmann", "httplib.h")
        with open(os.path.join(self.folder, "all.cpp"), "w", encoding="ascii") as file:
            for name in ("sockets", "end_signal", "connection", "http", "main"):
                file.write(f'#include "{name}.cpp"\n')
        folders = ("examples/server", "examples/cli", "single_include")
        self.check([MINGW, *WARNINGS, "-Wno-subobject-linkage", "-fsyntax-only", "-isystem", headers,
                    f'-DAUSPEX_SOURCE_DIR="{REPO}"', *(f"-I{os.path.join(REPO, folder)}" for folder in folders),
                    os.path.join(self.folder, "all.cpp")])

    @unittest.skipUnless(DEEP, "runs with AUSPEX_TEST_DEEP=1")
    def test_the_server_as_released(self):
        build = os.path.join(REPO, "build", "windows")
        self.build(build, "auspex", "auspex_server",
                   options=["-DAUSPEX_SERVER=ON", f"-DAUSPEX_HTTPLIB={self.whole_httplib()}"])
        script = os.path.join(self.folder, "auspex-server")
        with open(script, "w", encoding="ascii") as file:
            file.write(WINE_SCRIPT.format(wine=WINE, program=os.path.join(build, "auspex-server.exe")))
        os.chmod(script, 0o755)
        done = run([WINE, os.path.join(build, "auspex.exe"), "serve", "--version"], **self.wine)
        self.assertRegex(done.stdout, rb"^auspex-server \d")
        done = subprocess.run([sys.executable, "-m", "unittest", *(f"test_{name}" for name in SERVER_TESTS)],
                              cwd=os.path.join(REPO, "tests"), env={**os.environ, **self.wine, "AUSPEX_SERVER": script},
                              stderr=subprocess.PIPE, timeout=2400, check=False)
        self.assertEqual(done.returncode, 0, done.stderr.decode(errors="replace")[-6000:])

    def whole_httplib(self):
        """The folder of cpp-httplib's header as its authors publish it: from Debian's source, which Debian splits."""
        apt = os.path.join(self.folder, "apt")
        os.makedirs(os.path.join(apt, "lists", "partial"))
        sources = os.path.join(apt, "sources.list")
        with open(sources, "w", encoding="utf-8") as file:
            for line in run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)",
                             "Created-By: Packages"]).stdout.decode().splitlines():
                file.write(f"deb-src {line}\n")
        options = ("-o", f"Dir::Etc::sourcelist={sources}", "-o", "Dir::Etc::sourceparts=/dev/null",
                   "-o", f"Dir::State::lists={apt}/lists", "-o", "APT::Sandbox::User=root")
        for command in (("update",), ("source", "--download-only", "cpp-httplib")):
            if subprocess.run(["apt-get", *options, *command], cwd=apt, capture_output=True, timeout=300,
                              check=False).returncode != 0:
                self.skipTest("the source of cpp-httplib cannot be had from this system's package archive")
        archive = glob.glob(os.path.join(apt, "*.orig.tar.*"))[0]
        shutil.unpack_archive(archive, apt)
        return os.path.dirname(glob.glob(os.path.join(apt, "*", "httplib.h"))[0])

    @unittest.skipIf(DEEP, "AUSPEX_TEST_DEEP=1 runs all of them, as they are released")
    def test_the_unit_tests_of_numbers_files_and_threads(self):
        # What is left out computes with the kernels that the others use, on models that take longest to make.
        self.check([WINE, os.path.join(self.build_quick("auspex_tests"), "auspex_tests.exe"),
                    "--test-suite-exclude=long", "--test-case-exclude=commit equivalence: run n*commit k leaves*"])

    @unittest.skipUnless(DEEP, "runs with AUSPEX_TEST_DEEP=1")
    def test_the_unit_tests_and_the_command_line_as_released(self):
        build = os.path.join(REPO, "build", "windows")
        self.build(build, "auspex", "auspex_tests", options=[])
        self.check([WINE, os.path.join(build, "auspex_tests.exe"), "--test-suite-exclude=long"])
        done = run([WINE, os.path.join(build, "auspex.exe"), "run", "-m", DEMO, "-p", PROMPT, "-n", "8", "--session",
                    "Z:" + os.path.join(self.folder, "s\u00e4ved.bin")], **self.wine)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        self.assertTrue(os.path.exists(os.path.join(self.folder, "s\u00e4ved.bin")))
        self.check_command_line(os.path.join(build, "auspex.exe"))

    def check_command_line(self, program):
        """What is of Windows alone in the command line."""
        here = "Z:" + self.folder.replace("/", "\\")

        def auspex(*arguments):
            return run([WINE, program, *arguments], **self.wine)

        def refused(words, *arguments):
            done = auspex(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, b""), done.stderr)
            self.assertIn(words, done.stderr)
        text = ("run", "-m", DEMO, "-p", PROMPT, "-n", "2")
        for name in ("NUL", "nul", here, here + "\\"):
            refused(b"a folder, a device or a pipe, expected a regular file", *text, "--session", name)
        for n_before, prefix in enumerate(("\\\\?\\", "\\\\?\\", "")):
            done = auspex(*text, "--json", "--session", prefix + here + "\\prefixed")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout)["session"]["tokens_before"] > 0, n_before > 0)
        refused(b"are the same file", *text, "--session", here + "\\new", "--trace", here + "\\NEW")
        done = run([WINE, program, "run", "-m", DEMO], stdin=subprocess.DEVNULL, **self.wine)
        self.assertIn(b"the prompt is empty", done.stderr)  # NUL is read: it is no terminal
        folder = os.path.join(self.folder, "alone")
        os.makedirs(folder)
        done = run([WINE, shutil.copy(program, folder), "serve"], **self.wine)
        self.assertEqual(done.returncode, 2)
        self.assertIn(b"build the target auspex_server, which needs cpp-httplib", done.stderr)

        # Stand-ins for auspex-bench.
        folder = os.path.join(self.folder, "programs")
        os.makedirs(folder)
        program = shutil.copy(program, folder)
        refused(b"cannot be started", "bench")
        for body, expected in (("ExitProcess(0xc0000005u);", 5), ("ExitProcess(0xffffffffu);", 255),
                               ("ExitProcess(130);", 130), (INTERRUPTED, 130)):
            with open(os.path.join(folder, "bench.cpp"), "w", encoding="ascii") as file:
                file.write(f"#include <windows.h>\nint main() {{ {body} }}\n")
            self.check([MINGW, os.path.join(folder, "bench.cpp"), "-o", os.path.join(folder, "auspex-bench.exe"),
                        "-static"])
            console, terminal = os.openpty()  # without one nothing gets a Ctrl-C
            done = subprocess.run([WINE, program, "bench"], env={**os.environ, **self.wine}, stdin=terminal,
                                  stdout=terminal, stderr=subprocess.PIPE, start_new_session=True, timeout=600,
                                  check=False)
            os.close(terminal)
            os.close(console)
            self.assertEqual((done.returncode, done.stderr), (expected, b""), body)
        self.check_kill(program, folder)

    def check_kill(self, program, folder):
        """A program ends with the one that started it, even if that is killed."""
        running = os.path.join(folder, "running")
        source = os.path.join(folder, "bench.cpp")
        with open(source, "w", encoding="ascii") as file:
            file.write("#include <windows.h>\nint main() {\n"
                       f"    CreateFileA(\"Z:{running}\", GENERIC_WRITE, FILE_SHARE_READ | FILE_SHARE_DELETE, nullptr, "
                       "CREATE_ALWAYS, FILE_FLAG_DELETE_ON_CLOSE, nullptr);\n    Sleep(60000);\n}\n")
        self.check([MINGW, source, "-o", os.path.join(folder, "auspex-bench.exe"), "-static"])
        with subprocess.Popen([WINE, program, "bench"], env={**os.environ, **self.wine}, stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as started:
            self.wait_for(lambda: os.path.exists(running))
            started.kill()
        self.wait_for(lambda: not os.path.exists(running))

    def wait_for(self, holds):
        end = time.monotonic() + 40  # seconds; the program would run for 60
        while not holds():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.1)


class Mingw(Base):
    """What CMake gives the compiler, without compiling."""

    def setUp(self):
        super().setUp()
        self.need(MINGW, "ninja")

    def configure(self, *options):
        """What it printed, the compiler's commands, and the package that would be installed."""
        done = run(["cmake", "-S", REPO, "-B", self.folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug",
                    f"-DCMAKE_TOOLCHAIN_FILE={REPO}/cmake/mingw.cmake", "-DAUSPEX_NO_VULKAN=ON", "-DAUSPEX_UNITY=ON",
                    "-DAUSPEX_CLI=OFF", "-DAUSPEX_TESTS=OFF", *options])
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        with open(os.path.join(self.folder, "compile_commands.json"), encoding="ascii") as file:
            commands = [entry["command"] for entry in json.load(file)]
        with open(os.path.join(self.folder, "package", "auspexConfig.cmake"), encoding="ascii") as file:
            return done.stderr.decode(), commands, file.read()

    def test_vectors_on_the_stack_of_windows_are_moved_without_alignment(self):
        _, commands, package = self.configure()
        self.assertTrue(commands)
        for text in (*commands, package):
            self.assertIn("-Wa,-mbig-obj", text)
            self.assertIn("-Wa,-muse-unaligned-vector-move", text)
        self.assertNotIn("-DAUSPEX_NO_SIMD", commands[0])
        source, unit = os.path.join(self.folder, "moves.s"), os.path.join(self.folder, "moves.o")
        with open(source, "w", encoding="ascii") as file:
            file.write("vmovaps %ymm1, 32(%rsp)\nvmovdqa 48(%rsp), %ymm2\nvmovdqa64 %zmm17, 16(%rsp)\n")
        done = run([MINGW, "-Wa,-muse-unaligned-vector-move", "-c", source, "-o", unit])
        self.assertEqual(done.returncode, 0, done.stderr)
        code = run(["x86_64-w64-mingw32-objdump", "-d", unit]).stdout.decode()
        for name in ("vmovups", "vmovdqu ", "vmovdqu64"):
            self.assertIn(name, code)

    def test_the_command_of_the_documents_gives_the_compiler_no_header_of_this_machine(self):
        with open(os.path.join(REPO, "docs", "PLATFORMS.md"), encoding="ascii") as file:
            command = re.search(r"^cmake .*mingw\.cmake(.*\\\n)*.*", file.read(), re.MULTILINE)[0].replace("\\\n", "")
        words = [self.folder if word == "build-windows" else word for word in command.split()]
        done = subprocess.run([*words, "-G", "Ninja"], cwd=REPO, capture_output=True, timeout=600, check=False)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        with open(os.path.join(self.folder, "compile_commands.json"), encoding="ascii") as file:
            self.assertNotIn("/usr/include", file.read())
        done = subprocess.run([*words, "-G", "Ninja", "-DAUSPEX_CLI=ON"], cwd=REPO, capture_output=True, timeout=600,
                              check=False)
        self.assertIn("The command line needs CLI11", done.stderr.decode())

    def test_an_assembler_without_unaligned_moves_leaves_the_kernels_out(self):
        said, commands, package = self.configure("-DAUSPEX_HAS_UNALIGNED_MOVES=OFF")
        self.assertIn("the SIMD kernels are left out", " ".join(said.split()))
        self.assertTrue(commands)
        for text in commands:
            self.assertIn("-DAUSPEX_NO_SIMD", text)
        self.assertIn("AUSPEX_NO_SIMD", package)


class Arm(Base):
    def test_text_on_aarch64_with_and_without_dot_products(self):
        self.need("qemu-aarch64-static")
        # 16 KB pages, as on current phones. Compiler and qemu together take least with -Og.
        program = self.compile("aarch64-linux-gnu-g++", "-Og", "-fno-exceptions", "-fno-asynchronous-unwind-tables",
                               "-Wl,-z,max-page-size=16384")
        headers = run(["readelf", "-lW", program]).stdout.decode()
        loads = [line.split()[-1] for line in headers.splitlines() if line.split()[:1] == ["LOAD"]]
        self.assertTrue(loads and set(loads) == {"0x4000"}, headers)
        for cpu in ("cortex-a72", "max"):
            self.assertIn("neon", self.check_text(["qemu-aarch64-static", "-cpu", cpu, program]))

    def test_armhf(self):
        if DEEP:
            self.need("qemu-arm-static")
            self.check_text(["qemu-arm-static", self.compile("arm-linux-gnueabihf-g++", "-O1")])
            return
        self.need("arm-linux-gnueabihf-g++")
        done = run(["arm-linux-gnueabihf-g++", *WARNINGS, "-DAUSPEX_NO_VULKAN", "-fsyntax-only",
                    os.path.join(REPO, "src", "auspex.cpp")])
        self.assertEqual(done.returncode, 0, done.stderr.decode()[-4000:])

    def test_a_file_of_3_gib_on_armhf(self):
        self.need("arm-linux-gnueabihf-g++", "qemu-arm-static", "ninja")
        large, source = os.path.join(self.folder, "large.gguf"), os.path.join(self.folder, "main.cpp")
        with open(large, "wb") as file:
            file.truncate(3 << 30)  # a hole
        with open(source, "w", encoding="ascii") as file:
            file.write("#include <base/file.h>\n#include <cstdio>\n#include <fcntl.h>\n"
                       "using namespace auspex::detail;\n"
                       "int main(int, char** argv) {\n"
                       "    std::puts(File::open(argv[1]).status().text.c_str());\n"
                       "    const auspex::FileRange part{open64(argv[1], O_RDONLY), 2500000000u, 4096};\n"
                       "    std::puts(File::open(part, auspex::Allocator(), false).status().text.c_str());\n}\n")
        program = os.path.join(self.folder, "main")
        units = [os.path.join(REPO, "src", "base", name + ".cpp") for name in ("base", "file", "guard", "system")]
        for option, words in ((["-D_FILE_OFFSET_BITS=64"], ["expected at most 2147483647, what a 32-bit process", ""]),
                              ([], ["compile it with -D_FILE_OFFSET_BITS=64"] * 2)):
            done = run(["arm-linux-gnueabihf-g++", "-std=c++17", "-O0", *option, "-I", os.path.join(REPO, "src"),
                        source, *units, "-static", "-pthread", "-o", program])
            self.assertEqual(done.returncode, 0, done.stderr.decode()[-4000:])
            lines = run(["qemu-arm-static", program, large]).stdout.decode().split("\n")
            for line, word in zip(lines, words):
                self.assertIn(word, line)
                self.assertEqual(word == "", line == "")
        done = run(["cmake", "-S", REPO, "-B", self.folder, "-G", "Ninja", "-DCMAKE_SYSTEM_NAME=Linux",
                    "-DCMAKE_CXX_COMPILER=arm-linux-gnueabihf-g++", "-DAUSPEX_NO_VULKAN=ON", "-DAUSPEX_UNITY=ON",
                    "-DAUSPEX_CLI=OFF", "-DAUSPEX_TESTS=OFF"])
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        with open(os.path.join(self.folder, "compile_commands.json"), encoding="ascii") as file:
            for entry in json.load(file):
                self.assertIn("-D_FILE_OFFSET_BITS=64", entry["command"])

    def test_the_header_s_targets_give_the_option_for_large_files_on_armhf(self):
        self.need("arm-linux-gnueabihf-g++", "ninja")
        build = os.path.join(self.folder, "build")
        for name, text in (("main.cpp", "#define AUSPEX_IMPLEMENTATION\n#include <auspex.hpp>\n"),
                           ("CMakeLists.txt", "cmake_minimum_required(VERSION 3.18)\nproject(a LANGUAGES CXX)\n"
                            f"add_subdirectory({REPO} auspex)\nadd_library(plain OBJECT main.cpp)\n"
                            "target_link_libraries(plain PRIVATE auspex::header)\n")):
            with open(os.path.join(self.folder, name), "w", encoding="ascii") as file:
                file.write(text)
        done = run(["cmake", "-S", self.folder, "-B", build, "-G", "Ninja", "-DCMAKE_SYSTEM_NAME=Linux",
                    "-DCMAKE_CXX_COMPILER=arm-linux-gnueabihf-g++", "-DAUSPEX_NO_VULKAN=ON", "-DAUSPEX_INSTALL=ON",
                    "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"])
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        with open(os.path.join(build, "compile_commands.json"), encoding="ascii") as file:
            command = next(e["command"] for e in json.load(file) if e["file"].endswith("main.cpp"))
        self.assertIn("-D_FILE_OFFSET_BITS=64", command)
        with open(os.path.join(build, "auspex", "package", "auspexConfig.cmake"), encoding="ascii") as file:
            self.assertIn("_FILE_OFFSET_BITS=64", file.read())

    def test_android(self):
        """The NDK is not needed to find a mistake: clang with its target, over headers of another C library. As C++20,
        without exceptions and RTTI, which the library needs nowhere."""
        self.need("clang++", "aarch64-linux-gnu-g++")
        done = run(["clang++", "--target=aarch64-linux-android29", *WARNINGS, "-DAUSPEX_NO_VULKAN", "-fsyntax-only",
                    "-std=c++20", "-fno-exceptions", "-fno-rtti", "-nostdinc++", "-U__ANDROID__", "-D_GNU_SOURCE",
                    *[f"-isystem{f}" for f in sorted(glob.glob("/usr/aarch64-linux-gnu/include/c++/*"))[-1:]],
                    *[f"-isystem{f}/aarch64-linux-gnu"
                      for f in sorted(glob.glob("/usr/aarch64-linux-gnu/include/c++/*"))[-1:]],
                    "-isystem/usr/aarch64-linux-gnu/include", os.path.join(REPO, "src", "auspex.cpp")])
        self.assertEqual(done.returncode, 0, done.stderr.decode()[-4000:])


if __name__ == "__main__":
    unittest.main()
