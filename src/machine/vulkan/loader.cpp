#include "../../base/os.h"
#include "loader.h"
#ifndef AUSPEX_NO_VULKAN

#include <cstring>

#if !defined(_WIN32)
#include <dlfcn.h>
#endif
#if defined(__GLIBC__)
#include <link.h>
#endif

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {
namespace loader_impl {

void* open_library(const char* name) {
#if defined(_WIN32)
    const bool is_path = std::strpbrk(name, "/\\") != nullptr;  // without a folder, Windows searches for it
    return reinterpret_cast<void*>(LoadLibraryW((is_path ? wide_path(name) : wide_text(name)).c_str()));
#else
    return dlopen(name, RTLD_NOW | RTLD_LOCAL);
#endif
}
/// One that belongs to the system. On Windows a file of its name in the folder of the program, or in the current one,
/// is not it.
void* open_system_library(const char* name) {
#if defined(_WIN32)
    return reinterpret_cast<void*>(LoadLibraryExA(name, nullptr, LOAD_LIBRARY_SEARCH_SYSTEM32));
#else
    return open_library(name);
#endif
}

PFN_vkGetInstanceProcAddr library_entry(void* library) {
#if defined(_WIN32)
    return reinterpret_cast<PFN_vkGetInstanceProcAddr>(
        reinterpret_cast<void*>(GetProcAddress(reinterpret_cast<HMODULE>(library), "vkGetInstanceProcAddr")));
#else
    return reinterpret_cast<PFN_vkGetInstanceProcAddr>(dlsym(library, "vkGetInstanceProcAddr"));
#endif
}

#if defined(_WIN32)
constexpr const char* kLoaders[] = {"vulkan-1.dll"};
#elif defined(__APPLE__)
constexpr const char* kLoaders[] = {"libvulkan.1.dylib", "libvulkan.dylib", "libMoltenVK.dylib"};
#else
constexpr const char* kLoaders[] = {"libvulkan.so.1", "libvulkan.so"};
#endif

}  // namespace loader_impl

Status load_library(Gpu* gpu, const OpenDetail& detail) {
    if (detail.loader) {
        gpu->vki.vkGetInstanceProcAddr = detail.loader;
        return {};
    }
    std::string tried;
    auto attempt = [&](const char* name, void* (*open)(const char*)) {
        tried += say(tried.empty() ? "" : ", ", name);
        gpu->library = open(name);
    };
    if (detail.loader_path)
        attempt(detail.loader_path, loader_impl::open_library);
    else
        for (const char* name : loader_impl::kLoaders)
            if (!gpu->library) attempt(name, loader_impl::open_system_library);
    if (!gpu->library)
        return fail(Code::no_device, "there is no Vulkan loader (tried ", tried,
                    "): install the graphics driver, or use the CPU.");
    gpu->vki.vkGetInstanceProcAddr = loader_impl::library_entry(gpu->library);
    if (!gpu->vki.vkGetInstanceProcAddr)
        return fail(Code::no_device, tried, " has no vkGetInstanceProcAddr: it is not a Vulkan loader.");
    return {};
}

void keep_drivers_loaded() {
#if defined(__GLIBC__)
    std::vector<std::string> names;
    const auto add = [](dl_phdr_info* info, size_t, void* to) {
        if (info->dlpi_name && *info->dlpi_name) static_cast<std::vector<std::string>*>(to)->push_back(info->dlpi_name);
        return 0;
    };
    dl_iterate_phdr(add, &names);
    for (const std::string& name : names) {
        void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD);
        if (library && !dlsym(library, "vk_icdGetInstanceProcAddr")) dlclose(library);
    }
#endif
}

}  // namespace vk
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN
