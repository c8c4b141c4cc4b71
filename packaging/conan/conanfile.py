"""Conan 2: conan create . --build=missing. shared=True packages the C interface, shared=False the C++ interface too."""
import os

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain, CMakeDeps, cmake_layout
from conan.tools.files import copy, get, rmdir

required_conan_version = ">=2.0"


class AuspexConan(ConanFile):
    name = "auspex"
    version = "@VERSION@"
    license = "Apache-2.0"
    description = "Runs hybrid language models from GGUF files inside a program, on Vulkan and CPU"
    topics = ("language-model", "inference", "gguf", "vulkan")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "fPIC": [True, False], "vulkan": [True, False]}
    default_options = {"shared": False, "fPIC": True, "vulkan": True}
    implements = ["auto_shared_fpic"]

    def layout(self):
        cmake_layout(self, src_folder="src")

    def requirements(self):
        if self.options.vulkan:  # the single header, which is packaged too, includes theirs
            self.requires("volk/[>=1.3.239]", transitive_headers=True)
            self.requires("vulkan-headers/[>=1.3.239]", transitive_headers=True)

    def validate(self):
        check_min_cppstd(self, 17)

    def source(self):
        get(self, **self.conan_data["sources"][self.version], strip_root=True)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["AUSPEX_INSTALL"] = True
        toolchain.cache_variables["AUSPEX_CLI"] = False
        toolchain.cache_variables["AUSPEX_TESTS"] = False
        toolchain.cache_variables["AUSPEX_NO_VULKAN"] = not self.options.vulkan
        toolchain.generate()
        CMakeDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        for folder in ("cmake", "pkgconfig"):  # Conan writes its own
            rmdir(self, os.path.join(self.package_folder, "lib", folder))
        rmdir(self, os.path.join(self.package_folder, "share"))

    def package_info(self):
        self.cpp_info.set_property("cmake_file_name", "auspex")
        self._header_info(self.cpp_info.components["header"])
        library = self.cpp_info.components["library"]
        library.libs = ["auspex"]
        library.set_property("cmake_target_aliases", ["auspex::c"])
        if self.options.shared:
            library.set_property("cmake_target_name", "auspex::shared")
            library.set_property("pkg_config_name", "auspex")
            library.defines = ["AUSPEX_C_SHARED"]
            if self.settings.os == "Windows":
                library.libs = ["auspex_shared"]  # the import library
        else:
            library.set_property("cmake_target_name", "auspex::auspex")
            library.set_property("pkg_config_name", "auspex-cpp")
            library.system_libs = self._system_libs()

    def _header_info(self, header):
        header.set_property("cmake_target_name", "auspex::header")
        header.libdirs, header.bindirs = [], []
        header.system_libs = self._system_libs()
        if self.options.vulkan:
            header.requires = ["volk::volk_headers", "vulkan-headers::vulkan-headers"]
        else:
            header.defines = ["AUSPEX_NO_VULKAN"]

    def _system_libs(self):
        if self.settings.os not in ("Linux", "FreeBSD"):
            return []
        return ["pthread", "m"] + (["dl"] if self.options.vulkan else [])
