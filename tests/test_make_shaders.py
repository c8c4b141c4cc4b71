"""tools/make_shaders.py: what it makes, and what it finds stale with which advice. Needs glslc for most."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GLSLC = shutil.which("glslc")
sys.path.insert(0, os.path.join(REPO, "tools"))
sys.dont_write_bytecode = True
import make_shaders
import shader_contract
KERNEL = """#version 450
// variant: twice -DFACTOR=2
// variant: thrice -DFACTOR=3
#extension GL_GOOGLE_include_directive : require
#include "half.glsl"
layout(local_size_x_id = 0) in;
layout(set = 0, binding = 0, std430) buffer Data { float x[]; };
void main() { x[gl_GlobalInvocationID.x] = half_of(x[gl_GlobalInvocationID.x]) * FACTOR; }
"""
DEMO_ARGS = """#ifdef __cplusplus
#include <cstdint>
namespace auspex { inline namespace AUSPEX_VERSION_NAMESPACE { namespace detail { namespace args {
using uint = uint32_t;
#endif
struct DemoArgs { uint n, m; };
#ifdef __cplusplus
} } } }
#endif
"""
DEMO = """#version 450
#extension GL_GOOGLE_include_directive : require
#include "demo_args.h"
layout(constant_id = 1) const uint ROW_COUNT = 1;
layout(constant_id = 2) const uint UNUSED = 1;
layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { DemoArgs args; };
layout(set = 0, binding = 0, std430) readonly buffer X { float x[]; };
layout(set = 0, binding = 1, std430) buffer Y { float y[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Z { float z[]; };
void main() {
    y[args.m] += x[args.n];
    for (uint i = 0; i < ROW_COUNT; i++) z[i] = y[i];
}
"""
LAYOUT_KERNEL = """#version 450
// variant: sum_<layout>
// variant: product_<layout> -DPRODUCT @product
#extension GL_GOOGLE_include_directive : require
#include "layout.glsl"
layout(local_size_x_id = 0) in;
layout(set = 0, binding = 0, std430) buffer Data { uint x[]; };
void main() { x[gl_GlobalInvocationID.x] = weight(TILE); }
"""


class MakeShadersTestCase(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)
        for folder in ("tools", "shaders/quant", "src/machine/vulkan"):
            os.makedirs(os.path.join(self.root, folder))
        for tool in ("make_shaders.py", "shader_contract.py"):
            shutil.copy(os.path.join(REPO, "tools", tool), os.path.join(self.root, "tools"))
        self.write("shaders/kernel.comp", KERNEL)
        self.write("shaders/half.glsl", "float half_of(float v) { return v * 0.5; }\n")

    def path(self, name):
        return os.path.join(self.root, name)

    def write(self, name, text):
        with open(self.path(name), "w") as f:
            f.write(text)

    def read(self, name):
        with open(self.path(name)) as f:
            return f.read()

    def run_tool(self, *words):
        r = subprocess.run([sys.executable, self.path("tools/make_shaders.py"), *words], capture_output=True, text=True)
        return r.returncode, r.stdout + r.stderr

    def make(self):
        code, said = self.run_tool()
        self.assertEqual(code, 0, said)
        return self.read("src/machine/vulkan/spirv.inc")

    def stale(self, *words):
        code, said = self.run_tool("--check")
        self.assertEqual(code, 1, said)
        for w in words + ("python3 tools/make_shaders.py",):
            self.assertIn(w, said)

    def test_a_missing_blob_is_found_and_mended_by_the_named_command(self):
        self.stale("spirv.inc is missing")

    def test_the_committed_blob_is_not_stale(self):
        tool = os.path.join(REPO, "tools", "make_shaders.py")
        r = subprocess.run([sys.executable, tool, "--check", "--glslc", "no-such-compiler"],
                           capture_output=True, text=True)
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
        self.assertIn("sources unchanged", r.stdout)

    @unittest.skipUnless(GLSLC, "needs glslc")
    def test_two_runs_give_the_same_bytes_and_a_check_agrees(self):
        first = self.make()
        self.assertEqual(self.make(), first)
        code, said = self.run_tool("--check")
        self.assertEqual(code, 0, said)
        self.assertIn("2 modules, byte for byte", said)

    @unittest.skipUnless(GLSLC, "needs glslc")
    def test_a_changed_include_makes_both_variants_stale_even_without_a_compiler(self):
        self.make()
        self.write("shaders/half.glsl", "float half_of(float v) { return v / 2.0; }\n")
        self.stale("'twice' is older", "'thrice' is older")
        code, said = self.run_tool("--check", "--glslc", "no-such-compiler")
        self.assertEqual(code, 1, said)

    @unittest.skipUnless(GLSLC, "needs glslc")
    def test_new_and_removed_variants_are_named(self):
        self.make()
        self.write("shaders/kernel.comp", KERNEL.replace("variant: thrice", "variant: fourfold"))
        self.stale("'thrice' has no source", "'fourfold' (shaders/kernel.comp) is missing")

    def write_layouts(self):
        self.write("shaders/kernel.comp", LAYOUT_KERNEL)
        self.write("shaders/quant/pair.glsl", "// layout: even 2 @product -DSTEP=2u\n// layout: odd 3 -DSTEP=3u\n"
                   "uint weight(uint n) { return n * STEP; }\n")
        self.write("shaders/quant/one.glsl", "// layout: one 1\nuint weight(uint n) { return n; }\n")

    @unittest.skipUnless(GLSLC, "needs glslc")
    def test_a_kernel_is_made_for_each_layout_from_its_own_file_and_the_host_gets_the_list(self):
        self.write_layouts()
        held = make_shaders.parse(self.make())[1]
        self.assertEqual(sorted(held), ["product_even", "sum_even", "sum_odd", "sum_one"])
        self.assertEqual(held["product_even"][2], held["sum_even"][2])
        for name, value in (("sum_even", 4), ("sum_odd", 9), ("sum_one", 1)):
            words = list(make_shaders.struct.unpack(f"<{len(held[name][2]) // 4}I", held[name][2]))
            self.assertIn(value, [w[3] for op, w in make_shaders.instructions(words) if op == 43], name)
        rows = ["#define AUSPEX_LAYOUTS(X)", "    X(even, 2, true)", "    X(odd, 3, false)", "    X(one, 1, false)\n"]
        self.assertIn(" \\\n".join(rows), self.read("src/machine/vulkan/shader_contract.h"))

    @unittest.skipUnless(GLSLC, "needs glslc")
    def test_a_changed_layout_makes_its_own_modules_stale_and_no_others(self):
        self.write_layouts()
        self.make()
        self.write("shaders/quant/one.glsl", "// layout: one 1\nuint weight(uint n) { return n + 5u; }\n")
        self.stale("'sum_one' is older")
        self.assertNotIn("sum_odd", self.run_tool("--check")[1])
        self.write_layouts()
        self.write("shaders/quant/more.glsl", "// layout: more 7\nuint weight(uint n) { return n; }\n")
        self.stale("'sum_more' (shaders/kernel.comp) is missing")

    def test_an_odd_or_repeated_layout_line_is_named(self):
        for line, expected in (("one x", "quant/one.glsl: the layout line 'one x' has an odd"),
                               ("one 1 @produce", "'one 1 @produce' has an odd"),
                               ("odd 1", "layout 'odd' is one of")):
            self.write_layouts()
            self.write("shaders/quant/one.glsl", f"// layout: {line}\nuint weight(uint n) {{ return n; }}\n")
            code, said = self.run_tool()
            self.assertEqual(code, 1)
            self.assertIn(expected, said)
        self.write("shaders/quant/one.glsl", "uint weight(uint n) { return n; }\n")
        self.write("shaders/kernel.comp", LAYOUT_KERNEL.replace("product_<layout>", "product"))
        self.assertIn("product -DPRODUCT @product", self.run_tool()[1])

    @unittest.skipUnless(GLSLC, "needs glslc")
    def test_an_edited_blob_is_found(self):
        text = self.make()
        self.write("src/machine/vulkan/spirv.inc", text.replace("// Generated by", "// Written by"))
        self.stale("edited by hand")
        at = text.index("kSpirvChunks[] = {") + 60
        self.write("src/machine/vulkan/spirv.inc", text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1:])
        self.stale()

    @unittest.skipUnless(GLSLC, "needs glslc")
    def test_a_kernel_that_does_not_compile_is_named_with_the_compilers_words(self):
        self.write("shaders/kernel.comp", KERNEL.replace("half_of(x[", "quarter_of(x["))
        code, said = self.run_tool()
        self.assertEqual(code, 1)
        self.assertIn("shaders/kernel.comp", said)
        self.assertIn("quarter_of", said)

    def test_a_missing_include_and_an_odd_variant_line_are_named(self):
        self.write("shaders/kernel.comp", KERNEL.replace("half.glsl", "none.glsl"))
        self.assertIn('"none.glsl", which is nowhere', self.run_tool()[1])
        self.write("shaders/kernel.comp", KERNEL.replace("-DFACTOR=2", "FACTOR=2"))
        self.assertIn("twice FACTOR=2", self.run_tool()[1])
        self.write("shaders/kernel.comp", KERNEL.replace("thrice", "twice"))
        self.assertIn("'twice' is made by kernel.comp, too", self.run_tool()[1])

    @unittest.skipUnless(GLSLC, "needs glslc")
    def test_an_exact_kernel_with_loose_arithmetic_and_a_float_subgroup_sum_are_refused(self):
        self.write("shaders/kernel.comp", KERNEL.replace("#version 450\n", "#version 450\n// lint: exact\n"))
        self.assertIn("may be contracted", self.run_tool()[1])
        self.write("shaders/kernel.comp", KERNEL.replace("half_of(x[", "subgroupAdd(x[")
                   .replace("#version 450\n", "#version 450\n#extension GL_KHR_shader_subgroup_arithmetic : require\n"))
        self.assertIn("subgroupAdd on floats", self.run_tool()[1])

    @unittest.skipUnless(GLSLC, "needs glslc")
    def test_a_shared_array_with_the_stride_of_the_arguments_array_is_refused(self):
        def kernel(length):
            return (KERNEL.replace("void main() {", f"shared uint s[{length}];\n"
                                   "layout(push_constant) uniform Push { uint a[4]; };\n"
                                   "void main() { const uint v = a[gl_LocalInvocationIndex & 3]; "
                                   "s[gl_LocalInvocationIndex & 3] = v; barrier(); ")
                    .replace("* FACTOR", "* FACTOR * float(s[0])"))
        self.write("shaders/kernel.comp", kernel(4))
        code, said = self.run_tool()
        self.assertEqual(code, 1)
        self.assertIn("a shared array has the stride", said)
        self.write("shaders/kernel.comp", kernel(5))
        code, said = self.run_tool()
        self.assertEqual(code, 0, said)

    @unittest.skipUnless(GLSLC, "needs glslc")
    def test_a_prebuilt_module_is_taken_while_its_source_is_unchanged(self):
        self.write("shaders/kernel.comp", KERNEL.replace("-DFACTOR=2", "-DFACTOR=2 @prebuilt"))
        code, said = self.run_tool()
        self.assertEqual(code, 1)
        self.assertIn("--prebuild twice --glslc", said)
        code, said = self.run_tool("--prebuild", "twice")
        self.assertEqual(code, 0, said)
        self.assertIn("prebuilt", self.make())
        self.write("shaders/half.glsl", "float half_of(float v) { return v / 2.0; }\n")
        self.assertIn("twice.spv is older than its source", self.run_tool()[1])

    @unittest.skipUnless(GLSLC, "needs glslc")
    def test_matrix_modules_are_rewritten_for_khr_with_each_role_told(self):
        shutil.copy(os.path.join(REPO, "shaders", "selftest.comp"), self.path("shaders"))
        self.make()
        held = make_shaders.parse(self.read("src/machine/vulkan/spirv.inc"))[1]["selftest_matrix_khr"][2]
        words = list(make_shaders.struct.unpack(f"<{len(held) // 4}I", held))
        code = list(make_shaders.instructions(words))
        constants = {w[2]: w[3] for op, w in code if op == 43}
        self.assertEqual(sorted(constants[w[6]] for op, w in code if op == 4456), [0, 1, 2])
        self.assertFalse([op for op, w in code if 5358 <= op <= 5362])
        self.assertIn([6022], [w[1:] for op, w in code if op == 17])
        for op, w in code:
            if op == 4457:
                self.assertIn(constants[w[4]], (0, 1))  # the layout, before the stride

    def make_contract_kernel(self):
        self.write("shaders/demo_args.h", DEMO_ARGS)
        self.write("shaders/demo.comp", DEMO)
        self.make()
        return self.read("src/machine/vulkan/shader_contract.h")

    @unittest.skipUnless(GLSLC, "needs glslc")
    def test_the_contract_names_constants_bindings_push_constants_and_group(self):
        text = self.make_contract_kernel()
        self.assertIn("namespace demo {\nconstexpr SpecId kRowCount{0x1};\nconstexpr SpecId kUnused{0x2};\n}", text)
        # Family 0, constants 1 and 2, three bindings: 0 and 1 are read, 1 and 2 written; 8 bytes; group by key.
        self.assertIn('{"demo", "kRowCount kUnused",\n     "x y z",\n     0, 0x6, 3, 0x3, 0x6, 8, {0, 1, 1}, false},',
                      text)
        self.assertIn("static_assert(sizeof(args::DemoArgs) == 8);", text)
        self.assertIn('{"twice", "",\n     "x",\n     1, 0x0, 1, 0x1, 0x1, 0, {0, 1, 1}, false},', text)

    @unittest.skipUnless(GLSLC and shutil.which("g++"), "needs glslc and g++")
    def test_a_host_struct_of_another_size_and_a_wrong_constant_name_do_not_compile(self):
        self.make_contract_kernel()
        def compile_host(code):
            header = '#include "src/machine/vulkan/shader_contract.h"\n'
            self.write("src/auspex.hpp", "#define AUSPEX_VERSION_NAMESPACE v1\n")
            self.write("host.cpp", header + "using namespace auspex::detail;\n" + code)
            r = subprocess.run(["g++", "-std=c++17", "-fsyntax-only", "-I", self.root, self.path("host.cpp")],
                               capture_output=True, text=True)
            return r.returncode, r.stderr
        self.assertEqual(compile_host("auto id = vk::spec::demo::kRowCount;")[0], 0)
        self.assertIn("kRows", compile_host("auto id = vk::spec::demo::kRows;")[1])
        self.write("shaders/demo_args.h", DEMO_ARGS.replace("uint n, m;", "uint n, m, k;"))
        code, said = compile_host("")
        self.assertEqual(code, 1)
        self.assertIn("DemoArgs) == 8", said)

    @unittest.skipUnless(GLSLC, "needs glslc")
    def test_what_only_the_host_reads_makes_no_module_stale(self):
        self.make_contract_kernel()
        self.write("shaders/demo_args.h", DEMO_ARGS.replace("<cstdint>", "<cstdint>  // integers\n#include <cstddef>"))
        code, said = self.run_tool("--check")
        self.assertEqual(code, 0, said)
        self.write("shaders/demo_args.h", DEMO_ARGS.replace("uint n, m;", "uint m, n;"))
        self.stale("'demo' is older")

    @unittest.skipUnless(GLSLC, "needs glslc")
    def test_an_edited_contract_is_found_even_without_a_compiler(self):
        text = self.make_contract_kernel()
        self.write("src/machine/vulkan/shader_contract.h", text.replace("kRowCount{0x1}", "kRowCount{0x2}"))
        self.stale("shader_contract.h is not the one")
        code, said = self.run_tool("--check", "--glslc", "no-such-compiler")
        self.assertEqual(code, 1, said)
        os.remove(self.path("src/machine/vulkan/shader_contract.h"))
        self.stale("shader_contract.h is missing")

    @unittest.skipUnless(GLSLC, "needs glslc")
    def test_a_module_that_disagrees_with_its_declarations_is_refused(self):
        self.make_contract_kernel()
        held = make_shaders.parse(self.read("src/machine/vulkan/spirv.inc"))[1]["demo"][2]
        code = list(make_shaders.instructions(list(make_shaders.struct.unpack(f"<{len(held) // 4}I", held))))
        shader_contract.reflect(code, DEMO)
        for change, expected in ((("binding = 1", "binding = 4"), "binding 1 is used but not declared"),
                                 (("buffer Y", "readonly buffer Y"), "binding 1 (y) is declared readonly"),
                                 (("constant_id = 1", "constant_id = 7"), "constant 1 is used but not declared")):
            with self.assertRaises(shader_contract.Mismatch) as raised:
                shader_contract.reflect(code, DEMO.replace(*change))
            self.assertIn(expected, str(raised.exception))

    @unittest.skipUnless(GLSLC, "needs glslc")
    def test_limits_of_the_layout_are_kept(self):
        for change, expected in (("binding = 2", "binding = 12"), "binding 12; the layout has 0 to 11"), \
                                (("local_size_x_id = 0", "local_size_x_id = 0, local_size_y_id = 3"), "only along x"):
            self.write("shaders/demo_args.h", DEMO_ARGS)
            self.write("shaders/demo.comp", DEMO.replace(*change))
            self.assertIn(expected, self.run_tool()[1])

    @unittest.skipUnless(GLSLC, "needs glslc")
    def test_a_changed_comment_leaves_the_module_up_to_date(self):
        first = self.make()
        self.write("shaders/half.glsl", "// halves\nfloat half_of(float v) {  return v * 0.5;  }  // of v\n")
        self.assertEqual(self.run_tool("--check")[0], 0)
        self.assertEqual(self.make(), first)

    @unittest.skipUnless(GLSLC, "needs glslc")
    def test_literals_stay_short_and_ascii(self):
        text = self.make()
        text.encode("ascii")
        for literal in re.findall(r'"(?:[^"\\\n]|\\[0-7]{3})*"', text):
            self.assertLess(len(literal), 2000)


if __name__ == "__main__":
    unittest.main()
