# Finds the headers that compiling the Vulkan machine takes: vulkan/vulkan.h and volk.h, from a Vulkan SDK (VULKAN_SDK), a
# package manager or the system. The driver is loaded at run time, so no library is linked.
# Sets auspex_vulkan_headers to their folders, or to nothing if one of them is missing, and auspex_volk_refused to a sentence
# about a volk.h that is not Vulkan's.
find_package(Vulkan QUIET)
find_path(AUSPEX_VULKAN_HEADERS vulkan/vulkan.h HINTS ${Vulkan_INCLUDE_DIR})
# GNU Radio's VOLK has a volk/volk.h, so folders of that name come last, and the header must define VOLK_HEADER_VERSION.
find_path(AUSPEX_VOLK_HEADERS volk.h HINTS ${AUSPEX_VULKAN_HEADERS} PATH_SUFFIXES Volk)
find_path(AUSPEX_VOLK_HEADERS volk.h HINTS ${AUSPEX_VULKAN_HEADERS} PATH_SUFFIXES volk)
mark_as_advanced(AUSPEX_VULKAN_HEADERS AUSPEX_VOLK_HEADERS)
set(auspex_vulkan_headers)
set(auspex_volk_version)
set(auspex_volk_refused)
if(EXISTS "${AUSPEX_VOLK_HEADERS}/volk.h")
  file(STRINGS "${AUSPEX_VOLK_HEADERS}/volk.h" auspex_volk_version REGEX "define VOLK_HEADER_VERSION")
  if(NOT auspex_volk_version)
    set(auspex_volk_refused "${AUSPEX_VOLK_HEADERS}/volk.h is another library's. ")
  endif()
endif()
if(AUSPEX_VULKAN_HEADERS AND auspex_volk_version)
  set(auspex_vulkan_headers ${AUSPEX_VULKAN_HEADERS} ${AUSPEX_VOLK_HEADERS})
  list(REMOVE_DUPLICATES auspex_vulkan_headers)
else()
  unset(AUSPEX_VOLK_HEADERS CACHE)  # the next configuration looks again
endif()
