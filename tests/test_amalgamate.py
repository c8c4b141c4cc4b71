"""amalgamate.py: what it makes, and what it refuses with which advice. Python's standard library only."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SCRIPT = os.path.join(REPO, "amalgamate.py")

PUBLIC = '#pragma once\n#include <string>\n#define AUSPEX_VERSION "9.8.7"\nnamespace auspex { int entry(); }\n'
TREE = {
    "src/auspex.hpp": PUBLIC,
    "src/auspex.cpp": '// list\n#include "auspex.hpp"\n#include "base/low.h"\n#include "base/low.cpp"\n'
                      '#include "plan/high.h"\n#include "plan/high.cpp"\n',
    "src/base/low.h": '#pragma once\n#include "../auspex.hpp"\n#include <string>\nnamespace auspex { int low(); }\n',
    "src/base/low.cpp": '#include "low.h"\n#include <vector>\nnamespace auspex { int low() { return 1; } }\n',
    "src/plan/high.h": '#pragma once\n#include "../base/low.h"\nnamespace auspex { int high(); }\n',
    "src/plan/high.cpp": '#include "high.h"\n#include <vector>\n'
                         'namespace auspex { int high() { return low() + 1; } int entry() { return high(); } }\n',
}


class BaseAmalgamate(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)
        self.write(TREE)

    def write(self, files):
        for name, text in files.items():
            path = os.path.join(self.root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as f:
                f.write(text if isinstance(text, bytes) else text.encode())

    def run_script(self, *options):
        return subprocess.run([sys.executable, SCRIPT, "--root", self.root, *options], capture_output=True, text=True)

    def result(self):
        with open(os.path.join(self.root, "single_include", "auspex.hpp")) as f:
            return f.read()

    def refused(self, *words):
        done = self.run_script()
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertFalse(os.path.exists(os.path.join(self.root, "single_include", "auspex.hpp")))
        self.assertIn("mend:", done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)


class Makes(BaseAmalgamate):
    def test_the_same_bytes_twice_with_the_version_and_no_date(self):
        self.assertEqual(self.run_script().returncode, 0)
        first = self.result()
        self.assertEqual(self.run_script().returncode, 0)
        self.assertEqual(first, self.result())
        self.assertIn("auspex 9.8.7", first.splitlines()[0])
        self.assertNotRegex(first, r"20\d\d-\d\d-\d\d|\d\d:\d\d:\d\d")

    def test_each_file_once_without_local_includes_or_pragma_once(self):
        self.run_script()
        text = self.result()
        for once in ("int low();", "int low() {", "int high();", "#include <string>", "#include <vector>"):
            self.assertEqual(text.count(once), 1, once)
        self.assertNotIn('#include "', text)
        self.assertNotIn("#pragma once", text)

    def test_declarations_come_before_all_code(self):
        self.run_script()
        text = self.result()
        self.assertLess(text.index("int high();"), text.index("int low() {"))

    def test_inl_files_are_pasted_at_each_inclusion(self):
        self.write({"src/base/low.cpp": '#include "low.h"\nnamespace auspex {\n#define N 1\n#include "k.inl"\n'
                                        '#undef N\n#define N 2\n#include "k.inl"\n#undef N\n'
                                        'int low() { return 1; } }\n',
                    "src/base/k.inl": "inline int kernel_at(char (*)[N]) { return N; }\n"})
        done = self.run_script()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.result().count("kernel_at"), 2)

    def test_includes_inside_conditions_stay_there(self):
        self.write({"src/base/low.cpp": '#include "low.h"\n#if defined(_WIN32)\n#include <windows.h>\n#else\n'
                                        '#include <unistd.h>\n#endif\nnamespace auspex { int low() { return 1; } }\n',
                    "src/plan/high.cpp": '#include "high.h"\n#include <unistd.h>\n'
                                         'namespace auspex { int high() { return 2; } int entry() { return 3; } }\n'})
        self.run_script()
        text = self.result()
        self.assertIn("#if defined(_WIN32)\n#include <windows.h>\n#else\n#include <unistd.h>\n#endif", text)
        self.assertEqual(text.count("#include <unistd.h>"), 2)  # the conditional one proves nothing

    def test_conditions_of_the_list_enclose_their_files(self):
        self.write({"src/auspex.cpp": TREE["src/auspex.cpp"] + '#ifndef AUSPEX_NO_GPU\n#include "gpu/a.h"\n'
                                                               '#include "gpu/a.cpp"\n#endif\n',
                    "src/gpu/a.h": '#pragma once\n#include "../plan/high.h"\nint gpu();\n',
                    "src/gpu/a.cpp": '#include "a.h"\nint gpu() { return 7; }\n'})
        done = self.run_script()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.result().count("\n#ifndef AUSPEX_NO_GPU\n"), 2)  # around declarations, around code

    def test_the_result_compiles_in_every_order_of_inclusion(self):
        compiler = shutil.which("g++") or shutil.which("clang++")
        if not compiler:
            self.skipTest("no compiler")
        self.run_script()
        self.write({"user.cpp": '#include "auspex.hpp"\n#include "auspex.hpp"\nint used() { return auspex::entry(); }\n'
                                'int inner();\nint main() { return used() + inner() == 4 ? 0 : 1; }\n',
                    "inner.cpp": '#define AUSPEX_INTERNALS\n#include "auspex.hpp"\n'
                                 'int inner() { return auspex::high(); }\n',
                    "late.cpp": '#include "auspex.hpp"\n#define AUSPEX_IMPLEMENTATION\n#include "auspex.hpp"\n'
                                '#include "auspex.hpp"\n'})
        program = os.path.join(self.root, "program")
        units = [os.path.join(self.root, n) for n in ("user.cpp", "inner.cpp", "late.cpp")]
        done = subprocess.run([compiler, "-std=c++17", "-I", os.path.join(self.root, "single_include"), *units, "-o",
                               program], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(subprocess.run([program]).returncode, 0)

    def test_each_part_of_the_implementation_is_a_unit_and_all_of_them_make_the_whole(self):
        compiler = shutil.which("g++") or shutil.which("clang++")
        if not compiler:
            self.skipTest("no compiler")
        self.write({"src/auspex.cpp": TREE["src/auspex.cpp"] + '#include "engine/top.cpp"\n',
                    "src/engine/top.cpp": '#include "../plan/high.h"\n#include <vector>\nnamespace auspex { int top() '
                                          '{ return high() + static_cast<int>(std::vector<int>(1).size()); } }\n',
                    "user.cpp": "namespace auspex { int top(); }\n"
                                "int main() { return auspex::top() == 3 ? 0 : 1; }\n"})
        done = self.run_script()
        self.assertEqual(done.returncode, 0, done.stderr)
        units = [os.path.join(self.root, "user.o")]
        command = [compiler, "-std=c++17", "-I", os.path.join(self.root, "single_include"), "-c", "-x", "c++"]
        subprocess.run([*command, os.path.join(self.root, "user.cpp"), "-o", units[0]], check=True)
        for part in range(1, 7):
            units.append(os.path.join(self.root, f"{part}.o"))
            done = subprocess.run([*command, f"-DAUSPEX_IMPLEMENTATION_PART={part}", "-", "-o", units[-1]], text=True,
                                  input='#define AUSPEX_IMPLEMENTATION\n#include "auspex.hpp"\n', capture_output=True)
            self.assertEqual(done.returncode == 0, part < 6, done.stderr)
        self.assertIn("expected 1 .. 5", done.stderr)
        program = os.path.join(self.root, "program")
        done = subprocess.run([compiler, *units[:-1], "-o", program], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)  # nothing is missing, nothing is there twice
        self.assertEqual(subprocess.run([program]).returncode, 0)

    def test_macros_that_other_headers_define_neither_break_it_nor_get_lost(self):
        compiler = shutil.which("g++") or shutil.which("clang++")
        if not compiler:
            self.skipTest("no compiler")
        # A macro of the list, and one that only a system header of the library itself defines, for both sides.
        self.write({"src/auspex.hpp": PUBLIC + "namespace auspex { struct Status {}; }\n",
                    "src/auspex.cpp": TREE["src/auspex.cpp"].replace(
                        '#include "base/low.h"', '#include "base/door_headers.h"\n#include "base/low.h"'),
                    "src/base/door_headers.h": "#pragma once\n#include <door.h>\n",
                    "system/door.h": "#pragma once\n#define verify(x) door_##x\n",
                    "src/base/low.h": TREE["src/base/low.h"] + '#include "door_headers.h"\n'
                                      "struct Low { int small = 1, slots = 2; void emit(); int verify(int); };\n",
                    "src/base/low.cpp": TREE["src/base/low.cpp"] + "void Low::emit() { small = verify(slots); }\n"
                                        "int Low::verify(int x) { return x; }\n",
                    "user.cpp": "#define small char\n#define emit\n#define slots\n#define Status int\n"
                                '#define AUSPEX_IMPLEMENTATION\n#include "auspex.hpp"\n'
                                "class User { public slots: emit small c = 1; };\n"
                                "Status verify(b) = 1;\nint* a = &door_b;\n"
                                "#undef Status\nauspex::Status none;\n"})
        done = self.run_script()
        self.assertEqual(done.returncode, 0, done.stderr)
        done = subprocess.run([compiler, "-std=c++17", "-Wall", "-Werror", "-fsyntax-only", "-I",
                               os.path.join(self.root, "single_include"), "-I", os.path.join(self.root, "system"),
                               os.path.join(self.root, "user.cpp")],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_an_application_that_asks_vulkan_for_windows_of_xlib_gets_xlibs_macros_and_the_library_does_not(self):
        compiler = shutil.which("g++") or shutil.which("clang++")
        if not compiler:
            self.skipTest("no compiler")
        ask = "#define VK_USE_PLATFORM_XLIB_KHR\n"
        self.write({"X11/Xlib.h": "#pragma once\n#define Status int\nstruct Display;\n"
                                  "typedef unsigned long Window, VisualID;\n",
                    "one.cpp": ask + '#define AUSPEX_INTERNALS\n#include "auspex.hpp"\nStatus a = 1, *b = &a;\n',
                    "two.cpp": ask + '#include "machine/vulkan/device.h"\nauspex::Status none;\n'})
        command = [compiler, "-std=c++17", "-fsyntax-only", "-I", self.root, "-I", os.path.join(REPO, "single_include"),
                   "-I", os.path.join(REPO, "src")]
        for name in ("one.cpp", "two.cpp"):
            done = subprocess.run([*command, os.path.join(self.root, name)], capture_output=True, text=True)
            if "volk.h: No such file" in done.stderr or "'volk/volk.h' file not found" in done.stderr:
                self.skipTest("no Vulkan headers")
            self.assertEqual(done.returncode, 0, name + done.stderr[-2000:])


class CInterface(BaseAmalgamate):
    C_TREE = {"src/auspex.cpp": TREE["src/auspex.cpp"] + '#include "auspex.h"\n#include "capi/capi.cpp"\n',
              "src/auspex.h": "#ifndef AUSPEX_H\n#define AUSPEX_H\n#include <stdint.h>\nint32_t c_entry(void);\n"
                              "#endif\n",
              "src/capi/capi.cpp": '#include "../auspex.hpp"\n#include "../auspex.h"\n#include <string>\n'
                                   'int32_t c_entry(void) { return auspex::entry(); }\n'}

    def test_it_is_a_header_of_its_own_with_code_for_one_cpp_file(self):
        self.write(self.C_TREE)
        done = self.run_script()
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(os.path.join(self.root, "single_include", "auspex.h")) as f:
            text = f.read()
        self.assertNotIn("c_entry", self.result())
        self.assertLess(text.index("int32_t c_entry(void);"), text.index("defined(AUSPEX_C_IMPLEMENTATION)"))
        self.assertLess(text.index('#include "auspex.hpp"'), text.index("return auspex::entry();"))
        self.assertEqual(text.count('#include "'), 1)
        self.assertEqual(self.run_script("--check").returncode, 0)
        self.write({"single_include/auspex.h": text + "\n"})
        done = self.run_script("--check")
        self.assertEqual(done.returncode, 1)
        self.assertIn("single_include/auspex.h is out of date", done.stderr)

    def test_it_may_not_use_internals(self):
        self.write({**self.C_TREE, "src/capi/capi.cpp": '#include "../base/low.h"\n'})
        self.refused("src/capi/capi.cpp:1", "the C interface includes src/base/low.h")


class Checks(BaseAmalgamate):
    def test_an_up_to_date_header_prints_nothing(self):
        self.run_script()
        done = self.run_script("--check")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_an_outdated_header_names_the_place_and_the_command(self):
        self.run_script()
        self.write({"src/base/low.cpp": TREE["src/base/low.cpp"].replace("return 1", "return 2")})
        done = self.run_script("--check")
        self.assertEqual(done.returncode, 1)
        for word in ("out of date", "return 1", "return 2", "python3 amalgamate.py"):
            self.assertIn(word, done.stderr)

    def test_missing_counts_as_out_of_date(self):
        done = self.run_script("--check")
        self.assertEqual(done.returncode, 1)
        self.assertIn("does not exist", done.stderr)

    def test_the_committed_header_is_up_to_date(self):
        done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)


class Refuses(BaseAmalgamate):
    def test_a_local_include_among_system_headers(self):
        self.write({"src/auspex.cpp": TREE["src/auspex.cpp"] + '#include "plan/door_headers.h"\n',
                    "src/plan/door_headers.h": '#pragma once\n#include <door.h>\n#include "../base/low.h"\n'})
        self.refused("src/plan/door_headers.h:3", '"../base/low.h" in a file of system includes')

    def test_an_include_of_a_higher_layer(self):
        self.write({"src/base/low.h": '#pragma once\n#include "../plan/high.h"\n'})
        self.refused("src/base/low.h:2", "includes a higher layer", "src/plan/high.h", "above")

    def test_a_file_that_cannot_be_compiled_by_itself(self):
        text = "#pragma once\nnamespace auspex {\ninline namespace AUSPEX_VERSION_NAMESPACE {}\n}\n"
        self.write({"src/base/low.h": text})
        self.refused("src/base/low.h:3", "AUSPEX_VERSION_NAMESPACE without src/auspex.hpp", "include it first")

    def test_an_unlisted_file(self):
        self.write({"src/plan/new.cpp": "int new_file;\n"})
        self.refused("src/plan/new.cpp", "missing from the file list", '#include "plan/new.cpp"')

    def test_a_listed_file_that_is_not_there(self):
        os.remove(os.path.join(self.root, "src/plan/high.cpp"))
        self.refused("src/auspex.cpp:6", "src/plan/high.cpp", "does not exist")

    def test_an_include_that_is_not_there(self):
        self.write({"src/plan/high.cpp": '#include "hihg.h"\n'})
        self.refused("src/plan/high.cpp:1", "hihg.h", "does not exist")

    def test_a_file_listed_twice(self):
        self.write({"src/auspex.cpp": TREE["src/auspex.cpp"] + '#include "base/low.h"\n'})
        self.refused("listed twice")

    def test_bytes_beyond_ascii(self):
        self.write({"src/base/low.cpp": '#include "low.h"\n// caf\u00e9\n'.encode("utf-8")})
        self.refused("src/base/low.cpp:2", "0xc3", "column 7", "ASCII")

    def test_a_source_including_a_source(self):
        self.write({"src/plan/high.cpp": '#include "../base/low.cpp"\n'})
        self.refused("includes the source file", ".inl")

    def test_a_macro_that_leaks(self):
        self.write({"src/base/low.cpp": '#include "low.h"\n#define SQUARE(x) ((x) * (x))\n'})
        self.refused("src/base/low.cpp:2", "SQUARE", "#undef")

    def test_unbalanced_conditions(self):
        self.write({"src/base/low.cpp": '#include "low.h"\n#if 1\n'})
        self.refused("src/base/low.cpp", "do not balance")

    def test_code_in_the_list(self):
        self.write({"src/auspex.cpp": TREE["src/auspex.cpp"] + "int x;\n"})
        self.refused("src/auspex.cpp:7", "no place in the file list")

    def test_all_problems_at_once(self):
        self.write({"src/plan/new.cpp": "", "src/plan/other.h": ""})
        self.refused("2 problems", "new.cpp", "other.h")


if __name__ == "__main__":
    unittest.main()
