"""What is installed, and programs that use the library in each way that build systems know.

One compilation serves all: the program that takes the release archive by FetchContent also installs the library.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DEMO = os.path.join(REPO, "examples", "models", "auspex-demo.gguf")
# Compiled quickly, not to be quick; the warnings are those of an application. Clang takes half as long as GCC here.
OPTIONS = ("-G", "Ninja", "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O0", "-DAUSPEX_NO_VULKAN=ON",
           "-DAUSPEX_NO_SIMD=ON", "-DAUSPEX_UNITY=ON",
           *(["-DCMAKE_CXX_COMPILER=clang++"] if shutil.which("clang++") else []))
CACHE = (f"-DCMAKE_CXX_COMPILER_LAUNCHER={shutil.which('ccache')}",) if shutil.which("ccache") else ()

PROGRAM_CPP = """#include <auspex.h>
#include <auspex.hpp>
#if __has_include(<base/base.h>) || __has_include(<engine/session.h>)
#error "private headers are on the include path"
#endif
#include <cstdio>
int main(int, char** argv) {
    auspex::Device device;
    auspex::Model model;
    auspex::Status s = auspex::Device::open().get(device);
    if (s.ok()) s = auspex::Model::load(device, argv[1]).get(model);
    std::puts(s.ok() ? "loaded from C++" : s.message().c_str());
    const auspex_error none = AUSPEX_ERROR_INIT;
    return s.ok() ? none.code : 1;
}
"""
PROGRAM_C = """#include <auspex.h>
#include <stdio.h>
int main(int argc, char** argv) {
    auspex_device* device = NULL;
    auspex_model* model = NULL;
    auspex_code code = auspex_device_open(NULL, &device, NULL);
    if (code == 0) code = auspex_model_load(device, argv[argc - 1], NULL, &model, NULL);
    auspex_model_free(model);
    auspex_device_free(device);
    puts(code == 0 ? "loaded from C" : auspex_code_name(code));
    return code == 0 ? 0 : 1;
}
"""
# Flags of a project that are not ours: its sources keep to them, and so does the public header; the library need not.
STRICT = "-Werror;-Wshadow;-Wold-style-cast;-Wswitch-enum"
TARGETS = """
add_executable(from_cpp main.cpp)
target_link_libraries(from_cpp PRIVATE {cpp})
add_executable(from_c main.c)
target_link_libraries(from_c PRIVATE {c})
"""
FETCH = """cmake_minimum_required(VERSION 3.18)
project(consumer LANGUAGES C CXX)
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:{strict}>")
include(FetchContent)
FetchContent_Declare(auspex URL {url} URL_HASH SHA256={sha256})
FetchContent_MakeAvailable(auspex)
if(CMAKE_CXX_FLAGS MATCHES "-W" OR TARGET auspex OR TARGET auspex_tests)
  message(FATAL_ERROR "the subproject changed its parent")
endif()
"""


def run(*command, **more):
    return subprocess.run(command, capture_output=True, text=True, **more)


class BasePackages(unittest.TestCase):
    def check(self, *command, **more):
        r = run(*command, **more)
        self.assertEqual(r.returncode, 0, f"{' '.join(command)}\n{r.stdout}{r.stderr}")
        return r.stdout

    def project(self, name, text):
        """A folder with the two programs and this CMakeLists.txt."""
        folder = os.path.join(self.root, name)
        os.makedirs(folder, exist_ok=True)
        for file, content in (("main.cpp", PROGRAM_CPP), ("main.c", PROGRAM_C), ("CMakeLists.txt", text)):
            with open(os.path.join(folder, file), "w", encoding="ascii") as f:
                f.write(content)
        return folder

    def build(self, name, text, *options):
        folder = self.project(name, text)
        self.check("cmake", "-S", folder, "-B", os.path.join(folder, "build"), *OPTIONS, *CACHE, *options)
        self.check("cmake", "--build", os.path.join(folder, "build"))
        return os.path.join(folder, "build")

    def assert_runs(self, folder, names=("from_cpp", "from_c"), **more):
        for name in names:
            out = self.check(os.path.join(folder, name), DEMO, timeout=120, **more)
            self.assertIn("loaded from C", out)


class Archive(BasePackages):
    def test_links_lead_to_files_of_the_archive(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        path = self.check(sys.executable, os.path.join(REPO, "packaging", "release.py"), folder).split()[0]
        with tarfile.open(path) as archive:
            names = set(archive.getnames())
            pages = {n: archive.extractfile(n).read().decode("utf-8") for n in names if n.endswith(".md")}
        top = os.path.basename(path)[:-len(".tar.gz")] + "/"
        self.assertIn(top + "README.md", pages)
        self.assertEqual({top + "examples/minimal/main.cpp"} - names, set())  # the first program of README
        missing = []
        for page, text in pages.items():
            for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
                target = os.path.normpath(os.path.join(os.path.dirname(page), link)).replace(os.sep, "/")
                missing += [f"{page}: {link}"] if target not in names else []
        self.assertEqual(missing, [])


@unittest.skipUnless(shutil.which("cmake") and shutil.which("ninja"), "needs cmake, ninja")
class Configuration(BasePackages):
    def test_build_shared_libs_chooses_what_is_installed_also_where_it_changes(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        static, shared, package = "libauspex.a", "libauspex.so", os.path.join(folder, "cmake_install.cmake")
        for options, installed in ((("-DBUILD_SHARED_LIBS=OFF",), {static}), (("-DBUILD_SHARED_LIBS=ON",), {shared}),
                                   (("-UBUILD_SHARED_LIBS",), {static, shared}),
                                   (("-DBUILD_SHARED_LIBS=OFF",), {static}),
                                   (("-DAUSPEX_SHARED=ON",), {static, shared}),
                                   (("-DAUSPEX_SHARED=OFF", "-DBUILD_SHARED_LIBS=ON"), {static})):
            self.check("cmake", "-S", REPO, "-B", folder, *OPTIONS, "-DAUSPEX_TESTS=OFF", "-DAUSPEX_CLI=OFF",
                       "-DAUSPEX_BENCH=OFF", *options)
            with open(package, encoding="utf-8") as f:
                text = f.read()
            self.assertEqual({name for name in (static, shared) if f'/{name}"' in text}, installed, options)

    def test_the_shared_library_of_one_unit_exports_its_functions_where_the_project_hides_all(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        self.check("cmake", "-S", REPO, "-B", folder, *OPTIONS, "-DAUSPEX_TESTS=OFF", "-DAUSPEX_CLI=OFF",
                   "-DCMAKE_CXX_VISIBILITY_PRESET=hidden")
        with open(os.path.join(folder, "compile_commands.json"), encoding="utf-8") as f:
            command = next(e["command"] for e in json.load(f) if e["file"].endswith("auspex.cpp"))
        self.assertIn("-fvisibility=hidden", command)
        self.assertIn("-DAUSPEX_C_SHARED", command)  # auspex.h then gives the functions an attribute of their own

    def test_the_volk_of_gnu_radio_is_passed_over(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        include, build = os.path.join(folder, "include"), os.path.join(folder, "build")
        find = os.path.join(REPO, "cmake", "auspex_vulkan.cmake")
        environment = {k: v for k, v in os.environ.items()
                       if k not in ("VULKAN_SDK", "CMAKE_PREFIX_PATH", "CMAKE_INCLUDE_PATH")}

        def write(name, text):
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write(text)

        def found():
            done = run("cmake", "-G", "Ninja", "-S", folder, "-B", build, env=environment)
            self.assertEqual(done.returncode, 0, done.stderr)
            return re.search("found: (.*)", done.stderr).group(1)

        write("CMakeLists.txt", f"""cmake_minimum_required(VERSION 3.18)
project(consumer NONE)
set(CMAKE_FIND_USE_CMAKE_SYSTEM_PATH OFF)
set(CMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH OFF)
set(CMAKE_INCLUDE_PATH "{include}")
include("{find}")
message("found: ${{auspex_volk_refused}}${{auspex_vulkan_headers}}")
""")
        write("include/vulkan/vulkan.h", "")
        write("include/volk/volk.h", "#define INCLUDED_VOLK_RUNTIME\n")
        self.assertEqual(found(), f"{include}/volk/volk.h is another library's. ")
        write("include/volk.h", "#define VOLK_HEADER_VERSION 304\n")
        self.assertEqual(found(), include)  # in the same folder
        os.remove(os.path.join(include, "volk.h"))
        os.remove(os.path.join(include, "volk", "volk.h"))
        self.assertEqual(found(), "")
        write("include/Volk/volk.h", "#define VOLK_HEADER_VERSION 304\n")  # as in LunarG's SDK
        self.assertEqual(found(), f"{include};{include}/Volk")

    def test_the_server_is_built_once_the_command_line_is(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        for value in ("OFF", "ON"):
            self.check("cmake", "-S", REPO, "-B", folder, *OPTIONS, "-DAUSPEX_TESTS=OFF", "-DAUSPEX_BENCH=OFF",
                       f"-DAUSPEX_CLI={value}")
            with open(os.path.join(folder, "CMakeCache.txt"), encoding="utf-8") as f:
                self.assertIn("AUSPEX_SERVER:BOOL=ON", f.read())
        with open(os.path.join(folder, "build.ninja"), encoding="utf-8") as f:
            self.assertIn("build auspex-server: ", f.read())

    def test_the_server_is_left_out_where_it_cannot_be_compiled(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        with open(os.path.join(folder, "httplib.h"), "w", encoding="ascii") as f:
            f.write("namespace httplib { class Server {}; }\n")  # has little in common with the versions that fit
        for option, words in ((f"-DAUSPEX_HTTPLIB={folder}", f"cpp-httplib in {folder} with the library"),
                              (f"-DAUSPEX_HTTPLIB={folder}/none", f"No httplib.h in {folder}/none"),
                              ("-DAUSPEX_STATIC=ON", "is a part of cpp-httplib")):
            build = tempfile.mkdtemp(dir=folder)
            said = self.check("cmake", "-S", REPO, "-B", build, *OPTIONS, "-DAUSPEX_TESTS=OFF", "-DAUSPEX_BENCH=OFF",
                              "-DAUSPEX_SHARED=OFF", option)
            self.assertIn(words, said)
            self.assertIn("auspex-server and `auspex serve` are left out", said)
            with open(os.path.join(build, "build.ninja"), encoding="utf-8") as f:
                self.assertFalse("auspex-server" in f.read())

    @unittest.skipUnless(shutil.which("meson"), "needs meson")
    @unittest.skipUnless(shutil.which("x86_64-w64-mingw32-g++-posix"), "needs the compiler for Windows")
    def test_the_meson_wrap_gives_the_compiler_of_windows_its_options(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)
        folder = self.project("consumer", "")
        self.check(sys.executable, os.path.join(REPO, "packaging", "release.py"), self.root)
        os.rename(os.path.join(self.root, "meson"), os.path.join(folder, "subprojects"))
        with open(os.path.join(folder, "meson.build"), "w", encoding="ascii") as f:
            f.write("project('consumer', 'cpp', default_options: ['cpp_std=c++17'])\n"
                    "static_library('plain', 'main.cpp', dependencies: dependency('auspex-header'))\n"
                    "static_library('cpp', 'main.cpp', dependencies: dependency('auspex-cpp'))\n")
        with open(os.path.join(folder, "windows.ini"), "w", encoding="ascii") as f:
            f.write("[binaries]\ncpp = 'x86_64-w64-mingw32-g++-posix'\nar = 'x86_64-w64-mingw32-ar'\n[host_machine]\n"
                    "system = 'windows'\ncpu_family = 'x86_64'\ncpu = 'x86_64'\nendian = 'little'\n")
        build = os.path.join(folder, "build")
        self.check("meson", "setup", build, folder, "--cross-file", os.path.join(folder, "windows.ini"),
                   "-Dauspex:vulkan=false", "-Dauspex:default_library=both", cwd=folder)
        commands = {}
        for entry in json.loads(self.check("ninja", "-C", build, "-t", "compdb", "cpp_COMPILER")):
            commands[entry["output"]] = entry["command"]
        for of in ("libplain", "libauspex-cpp", ".dll"):
            found = [command for output, command in commands.items() if of in output]
            self.assertTrue(found, (of, list(commands)))
            for command in found:
                self.assertIn("-Wa,-mbig-obj", command)
                self.assertIn("-Wa,-muse-unaligned-vector-move", command)


@unittest.skipUnless(shutil.which("cmake") and shutil.which("ninja") and shutil.which("gcc"), "needs cmake, ninja, gcc")
class Packages(BasePackages):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.root)
        os.environ.update({"CCACHE_BASEDIR": cls.root, "CCACHE_NOHASHDIR": "1"})  # also in other folders
        cls.release = os.path.join(cls.root, "release")
        case = cls()
        case.root = cls.root
        out = case.check(sys.executable, os.path.join(REPO, "packaging", "release.py"), cls.release).split()
        cls.archive, cls.sha256 = out[0], out[2]
        cls.version = os.path.basename(cls.archive)[len("auspex-"):-len(".tar.gz")]
        text = FETCH.format(url="file://" + cls.archive, sha256=cls.sha256, strict=STRICT)
        cls.fetched = case.build("fetch", text + TARGETS.format(cpp="auspex::auspex", c="auspex::shared"),
                                 "-DAUSPEX_INSTALL=ON", "-DAUSPEX_SHARED=ON")
        first = os.path.join(cls.root, "first")
        case.check("cmake", "--install", cls.fetched, "--prefix", first)
        cls.prefix = os.path.join(cls.root, "moved here")  # relocatable, and paths may have spaces
        os.rename(first, cls.prefix)
        cls.libdir = next(folder for folder, _, names in os.walk(cls.prefix) if "libauspex.a" in names)

    def test_the_release_archive_is_the_same_each_time_and_holds_the_library_alone(self):
        again = os.path.join(self.root, "again")
        out = self.check(sys.executable, os.path.join(REPO, "packaging", "release.py"), again, "--url",
                         "https://example.org/a.tar.gz").split()
        self.assertEqual(out[2], self.sha256)
        with tarfile.open(self.archive) as archive:
            names = archive.getnames()
        self.assertIn(f"auspex-{self.version}/src/auspex.hpp", names)
        self.assertFalse([n for n in names if n.endswith((".gguf", ".pyc")) or "/tests/" in n])
        with open(os.path.join(again, "vcpkg", "auspex", "portfile.cmake"), encoding="ascii") as f:
            self.assertIn(out[4], f.read())

    def test_fetch_content_gives_both_libraries(self):
        self.assert_runs(self.fetched)

    def test_add_subdirectory_compiles_what_is_linked_and_installs_nothing(self):
        source = os.path.join(self.fetched, "_deps", "auspex-src")  # the same paths: ccache knows them
        text = ("cmake_minimum_required(VERSION 3.18)\nproject(consumer LANGUAGES C CXX)\n"
                f'add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:{STRICT}>")\n'
                f"add_subdirectory({source} auspex)\nif(TARGET auspex_shared OR AUSPEX_INSTALL)\n"
                'message(FATAL_ERROR "expected the static library alone")\nendif()\n')
        folder = self.build("subdirectory", text + TARGETS.format(cpp="auspex::auspex", c="auspex::c"))
        self.assert_runs(folder)
        nothing = os.path.join(self.root, "nothing")
        self.check("cmake", "--install", folder, "--prefix", nothing)
        self.assertFalse(os.path.exists(nothing))

    def test_find_package_finds_every_component_where_the_tree_was_moved_to(self):
        text = ("cmake_minimum_required(VERSION 3.18)\nproject(consumer LANGUAGES C CXX)\n"
                "find_package(auspex 0.1 REQUIRED COMPONENTS static shared header)\n"
                "get_target_property(definitions auspex::header INTERFACE_COMPILE_DEFINITIONS)\n"
                'if(NOT definitions MATCHES "AUSPEX_NO_VULKAN")\nmessage(FATAL_ERROR "found ${definitions}")\nendif()\n'
                "add_library(plain OBJECT main.cpp)\ntarget_link_libraries(plain PRIVATE auspex::header)\n")
        folder = self.build("find", text + TARGETS.format(cpp="auspex::auspex", c="auspex::c"),
                            f"-DCMAKE_PREFIX_PATH={self.prefix}")
        self.assert_runs(folder)
        self.assertIn("libauspex.so", self.check("readelf", "-d", os.path.join(folder, "from_c")))
        self.assertNotIn("libauspex.so", self.check("readelf", "-d", os.path.join(folder, "from_cpp")))

    def test_find_package_refuses_another_version_and_says_what_a_component_lacks(self):
        for wanted, said in (("0.2", "compatible with requested version"), ("0.1 COMPONENTS gpu", "component 'gpu'"),
                             ("0.1 COMPONENTS shared", "")):
            text = ("cmake_minimum_required(VERSION 3.18)\nproject(a LANGUAGES CXX)\n"
                    f"find_package(auspex {wanted} REQUIRED)\n")
            folder = self.project("versions", text)
            shutil.rmtree(os.path.join(folder, "build"), ignore_errors=True)
            r = run("cmake", "-S", folder, "-B", os.path.join(folder, "build"), "-G", "Ninja",
                    f"-DCMAKE_PREFIX_PATH={self.prefix}")
            self.assertEqual(r.returncode == 0, said == "", r.stderr)
            self.assertIn(said, " ".join(r.stderr.split()))

    def test_a_project_in_c_is_told_that_the_static_library_needs_cpp(self):
        alone = os.path.join(self.root, "static alone")
        shutil.copytree(self.prefix, alone)
        for folder, _, names in os.walk(alone):
            for name in names:
                if name.startswith("auspex-shared"):
                    os.remove(os.path.join(folder, name))
        source = os.path.join(self.fetched, "_deps", "auspex-src")
        find = "find_package(auspex 0.1 REQUIRED{})\n"
        for prefix, text, said in (
                (self.prefix, find.format(" COMPONENTS static"), "'static' here: it needs C++ in the project"),
                (alone, find.format(""), "a static library alone here: it needs C++ in the project"),
                (self.prefix, find.format(""), ""),
                (self.prefix, f"add_subdirectory({source} auspex)\n", "which a project without C++ cannot link")):
            folder = self.project("languages", "cmake_minimum_required(VERSION 3.18)\nproject(a LANGUAGES C)\n" +
                                  f"{text}add_executable(from_c main.c)\n"
                                  "target_link_libraries(from_c PRIVATE auspex::c)\n")
            shutil.rmtree(os.path.join(folder, "build"), ignore_errors=True)
            r = run("cmake", "-S", folder, "-B", os.path.join(folder, "build"), "-G", "Ninja", "-DAUSPEX_NO_VULKAN=ON",
                    f"-DCMAKE_PREFIX_PATH={prefix}")
            self.assertEqual(r.returncode == 0, said == "", r.stderr)
            self.assertIn(said, " ".join(r.stderr.split()))

    @unittest.skipUnless(shutil.which("pkg-config"), "needs pkg-config")
    def test_pkg_config_gives_the_c_interface_and_the_cpp_interface(self):
        folder = self.project("pkg", "")
        environment = {**os.environ, "PKG_CONFIG_PATH": os.path.join(self.libdir, "pkgconfig"),
                       "LD_LIBRARY_PATH": self.libdir}
        for compiler, source, package, name in (("gcc -std=c99", "main.c", "auspex", "from_c"),
                                                ("g++ -std=c++17", "main.cpp", "auspex-cpp", "from_cpp")):
            self.check("sh", "-c", f"eval {compiler} {source} -o {name} $(pkg-config --cflags --libs {package})",
                       cwd=folder, env=environment)
        self.assert_runs(folder, env=environment)
        self.assertEqual(self.check("pkg-config", "--modversion", "auspex", env=environment).strip(), self.version)
        self.assertIn("-lstdc++", self.check("pkg-config", "--static", "--libs", "auspex", env=environment))

    @unittest.skipUnless(shutil.which("meson"), "needs meson")
    def test_the_meson_wrap_gives_its_dependencies(self):
        deep = os.environ.get("AUSPEX_TEST_DEEP") == "1"  # compiles the library once more, in both kinds
        folder = self.project("meson", "")
        shutil.copytree(os.path.join(self.release, "meson"), os.path.join(folder, "subprojects"))
        with open(os.path.join(folder, "meson.build"), "w", encoding="ascii") as f:
            f.write("project('consumer', 'c', 'cpp', default_options: ['cpp_std=c++17'])\n"
                    "static_library('plain', 'main.cpp', dependencies: dependency('auspex-header'))\n"
                    "executable('from_cpp', 'main.cpp', dependencies: dependency('auspex-cpp'))\n"
                    "executable('from_c', 'main.c', dependencies: dependency('auspex'))\n")
        for kind in ("shared", "static") if deep else ("shared",):
            build = os.path.join(folder, kind)
            self.check("meson", "setup", build, folder, "-Dauspex:vulkan=false", "-Dauspex:simd=false",
                       "-Dauspex:optimization=0", f"-Dauspex:default_library={kind}", cwd=folder)
            programs = ["from_cpp", "from_c"] if deep else []
            self.check("ninja", "-C", build, *(programs or ["libplain.a"]))
            self.assert_runs(build, programs)
            listed = self.check("meson", "introspect", build, "--targets")
            self.assertEqual('"shared library"' in listed, kind == "shared")

    def test_build_shared_libs_chooses_what_is_installed(self):
        for value, there in (("ON", "shared"), ("OFF", "static")):
            build = os.path.join(self.root, "kind" + value)
            self.check("cmake", "-S", os.path.join(self.fetched, "_deps", "auspex-src"), "-B", build, *OPTIONS,
                       f"-DBUILD_SHARED_LIBS={value}")
            with open(os.path.join(build, "cmake_install.cmake"), encoding="ascii") as f:
                script = f.read()
            for kind in ("shared", "static"):
                self.assertEqual(f"/auspex-{kind}.cmake" in script, kind == there)
            self.assertEqual("auspex-cpp.pc" in script, there == "static")

    def test_nothing_installed_names_the_build_and_only_public_headers_are_there(self):
        for folder, _, names in os.walk(self.prefix):
            for name in names:
                if name.endswith((".cmake", ".pc")):
                    with open(os.path.join(folder, name), encoding="ascii") as f:
                        self.assertNotIn(self.root, f.read(), name)
        self.assertEqual(sorted(os.listdir(os.path.join(self.prefix, "include"))), ["auspex.h", "auspex.hpp"])
