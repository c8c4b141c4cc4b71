"""README and documents: the program is the one that is built, commands run, options exist, links lead to files."""
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BINARY = os.environ.get("AUSPEX_BINARY", os.path.join(REPO, "build", "auspex"))  # empty: not built
PAGES = ["README.md", "CHANGELOG.md", "examples/models/README.md",
         *("docs/" + name for name in sorted(os.listdir(os.path.join(REPO, "docs"))) if name.endswith(".md"))]


def read(name):
    with open(os.path.join(REPO, name), encoding="utf-8") as f:
        return f.read()


def commands(page):
    """The lines of a page's ```sh blocks."""
    return [line for block in re.findall(r"```sh\n(.*?)```", read(page), re.DOTALL) for line in block.splitlines()]


class Readme(unittest.TestCase):
    def test_its_program_is_the_minimal_example(self):
        self.assertIn("```cpp\n" + read("examples/minimal/main.cpp").rstrip("\n") + "\n```", read("README.md"))

    def test_its_program_compiles_by_the_command_in_its_first_line(self):
        compiler = shutil.which("g++")
        if not compiler:
            self.skipTest("needs g++")
        command = shlex.split(read("examples/minimal/main.cpp").splitlines()[0].removeprefix("// Compile: "))
        self.assertEqual(command[0], "g++")
        r = subprocess.run([compiler, "-fsyntax-only", *command[1:]], cwd=REPO, capture_output=True, text=True)
        self.assertEqual(r.returncode, 0, r.stderr)

    def test_the_header_says_which_options_it_cannot_be_compiled_with(self):
        compiler = shutil.which("g++")
        if not compiler:
            self.skipTest("needs g++")
        command = [compiler, "-fsyntax-only", "-Wfatal-errors", "-DAUSPEX_NO_VULKAN", "-I",
                   os.path.join(REPO, "single_include"), "-x", "c++", "-"]
        plain, whole = "#include <auspex.hpp>\n", "#define AUSPEX_IMPLEMENTATION\n#include <auspex.hpp>\n"
        for options, program, said in ((["-std=c++14"], plain, "needs C++17"),
                                       (["-std=c++17", "-ffast-math"], whole, "without -ffast-math"),
                                       (["-std=c++17", "-O2", "-ffinite-math-only"], whole, "without -ffast-math"),
                                       (["-std=c++17", "-ffast-math"], plain, "")):
            r = subprocess.run([*command, *options], input=program, capture_output=True, text=True)
            self.assertEqual(r.returncode == 0, said == "", r.stderr)
            self.assertIn(said, r.stderr)

    def test_it_shows_two_commands(self):
        configure, run = commands("README.md")
        self.assertTrue(configure.startswith("cmake -S . -B build ") and run.startswith("build/auspex "))

    def test_its_first_command_configures(self):
        if not shutil.which("cmake"):
            self.skipTest("needs cmake")
        configure, build = commands("README.md")[0].split(" && ")
        self.assertEqual(build, "cmake --build build -j")  # what has built the program under test
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        arguments = [folder if a == "build" else a for a in shlex.split(configure)]
        r = subprocess.run(arguments, cwd=REPO, capture_output=True, text=True)
        self.assertEqual(r.returncode, 0, r.stderr)

    @unittest.skipUnless(os.path.exists(BINARY), "needs the auspex program")
    def test_its_second_command_continues_the_log(self):
        arguments = shlex.split(commands("README.md")[1])
        r = subprocess.run([BINARY, *arguments[1:]], capture_output=True, text=True, timeout=600,
                           stdin=subprocess.DEVNULL)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("temp=", r.stdout)

    @unittest.skipUnless(os.path.exists(BINARY), "needs the auspex program")
    @unittest.skipIf(os.name == "nt", "a shell script")
    def test_the_demo_script_takes_the_number_of_tokens_and_the_prompt(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        for name, text in (("tools/demo.sh", read("tools/demo.sh")),
                           ("tools/whole_setup.sh", read("tools/setup.sh")),
                           ("tools/setup.sh", "uname() { echo \"$machine\"; }\n. tools/whole_setup.sh\n"
                                              "need_packages() { :; }\nconfigure() { :; }\ncmake() { :; }\n"),
                           ("build/auspex", "#!/bin/sh\nprintf '\\n%s' \"$@\"\n")):
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
            os.chmod(path, 0o755)

        def run(*given, machine="x86_64"):
            r = subprocess.run(["bash", os.path.join(folder, "tools", "demo.sh"), *given], capture_output=True,
                               text=True, timeout=60, env={**os.environ, "machine": machine})
            self.assertEqual(r.returncode, 0, r.stderr)
            return r.stdout

        for given, n in (([], "96"), (["-n", "200", "--device", "cpu"], "200")):
            words = run(*given).splitlines()
            self.assertEqual([words[i + 1] for i, word in enumerate(words) if word == "-n"], [n])
        self.assertEqual(run("-p", "a -n b"), "\nrun\n-n\n96\n-v\n-p\na -n b")
        self.assertEqual(run("--file=x"), "\nrun\n-n\n96\n-v\n--file=x")
        self.assertEqual(run(machine="aarch64"), run())  # where setup.sh knows fewer packages

    @unittest.skipUnless(os.path.exists(BINARY), "needs the auspex program")
    def test_the_commands_it_lists_are_those_of_the_program(self):
        r = subprocess.run([BINARY, "--help"], capture_output=True, text=True, timeout=60)
        listed = re.search(r"`auspex --help` lists the other commands: ([a-z,\s]+)\.", read("README.md")).group(1)
        names = re.findall(r"\w+", listed.replace(" and ", " "))
        self.assertEqual(set(names) | {"run"}, set(re.findall(r"^  ([a-z]+) ", r.stdout, re.MULTILINE)))


class Documents(unittest.TestCase):
    def test_links_lead_to_files(self):
        for page in PAGES:
            for link in re.findall(r"\]\(([^)#:]+)\)", read(page)):
                path = os.path.join(REPO, os.path.dirname(page), link)
                self.assertTrue(os.path.exists(path), f"{page}: {link}")

    def test_functions_of_embedding_compile(self):
        compiler = shutil.which("g++")
        if not compiler:
            self.skipTest("needs g++")
        functions = "\n".join(re.findall(r"```cpp\n(.*?)```", read("docs/EMBEDDING.md"), re.DOTALL))
        self.assertIn("Status answer(", functions)
        headers = "".join(f"#include <{name}>\n" for name in ("auspex.hpp", "atomic", "chrono", "cstdio", "thread"))
        r = subprocess.run([compiler, "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-I",
                            "single_include", "-x", "c++", "-"], cwd=REPO, capture_output=True, text=True,
                           input=headers + "using namespace auspex;\n" + functions)
        self.assertEqual(r.returncode, 0, r.stderr)

    def test_files_named_in_the_architecture_exist(self):
        text = read("docs/ARCHITECTURE.md")
        for name in re.findall(r"`((?:src|tests|tools|shaders|examples)/[\w./]+|test_\w+\.(?:cpp|py))`", text):
            path = name if "/" in name else "tests/" + name
            self.assertTrue(os.path.exists(os.path.join(REPO, path)), name)

    @unittest.skipUnless(os.path.exists(BINARY), "needs the auspex program")
    def test_options_of_commands_exist(self):
        helps = {}
        for page in PAGES:
            command_line = r"`?auspex (run|chat|inspect|bench|eval|logits|serve)( [^`\n]*)"
            for command, rest in re.findall(command_line, read(page)):
                if command not in helps:
                    r = subprocess.run([BINARY, command, "--help"], capture_output=True, text=True, timeout=60)
                    self.assertEqual(r.returncode, 0, r.stderr)
                    helps[command] = r.stdout
                for option in re.findall(r"(?<= )--[a-z][a-z-]*", rest):
                    if option != "--help":
                        self.assertRegex(helps[command], re.escape(option) + r"\b", f"{page}: auspex {command}{rest}")

    def test_every_option_of_the_build_is_described(self):
        options = re.findall(r"^(?:option\(|set\((?=\w+ \S+ CACHE))(AUSPEX_\w+)", read("CMakeLists.txt"), re.MULTILINE)
        self.assertIn("AUSPEX_SANITIZE", options)
        pages = read("docs/BUILDING.md") + read("docs/CONTRIBUTING.md")
        self.assertEqual([name for name in options if f"-D{name}=" not in pages], [])

    def test_the_changelog_knows_the_version(self):
        version = re.search(r'#define AUSPEX_VERSION "([^"]+)"', read("src/auspex.hpp")).group(1)
        self.assertIn(f"## {version}", read("CHANGELOG.md"))


if __name__ == "__main__":
    unittest.main()
