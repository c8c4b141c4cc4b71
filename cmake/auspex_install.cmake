# What `cmake --install` puts where: headers, libraries, the CMake package, pkg-config files. Included by CMakeLists.txt
# when AUSPEX_INSTALL is on. Nothing that is installed holds an absolute path: the tree may be moved.
#
# BUILD_SHARED_LIBS chooses: ON the shared library, OFF the static one, not set both.
include(CMakePackageConfigHelpers)
set(auspex_package ${CMAKE_INSTALL_LIBDIR}/cmake/auspex)

install(FILES single_include/auspex.hpp single_include/auspex.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(auspex_install_static ON)
if(TARGET auspex_shared)
  if(BUILD_SHARED_LIBS)
    set(auspex_install_static OFF)
  endif()
  install(TARGETS auspex_shared EXPORT auspex_shared
    RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT auspex_shared FILE auspex-shared.cmake NAMESPACE auspex:: DESTINATION ${auspex_package})
endif()
if(auspex_install_static)
  install(TARGETS auspex_library EXPORT auspex_static
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT auspex_static FILE auspex-static.cmake NAMESPACE auspex:: DESTINATION ${auspex_package})
endif()

# ------------------------------------------------------------------------------------ CMake package

set(AUSPEX_NO_VULKAN_VALUE OFF)  # ON or OFF, whatever true value the user chose
set(auspex_header_definitions ${auspex_file_definitions})
set(auspex_header_libraries ${CMAKE_DL_LIBS})
if(AUSPEX_NO_VULKAN)
  set(AUSPEX_NO_VULKAN_VALUE ON)
  list(APPEND auspex_header_definitions AUSPEX_NO_VULKAN)
  set(auspex_header_libraries)
endif()
foreach(option NO_SIMD NO_AVX512)
  if(AUSPEX_${option})
    list(APPEND auspex_header_definitions AUSPEX_${option})
  endif()
endforeach()
configure_package_config_file(cmake/auspexConfig.cmake.in ${PROJECT_BINARY_DIR}/package/auspexConfig.cmake
  INSTALL_DESTINATION ${auspex_package} PATH_VARS CMAKE_INSTALL_INCLUDEDIR)
set(auspex_compatibility SameMajorVersion)
if(PROJECT_VERSION_MAJOR EQUAL 0)  # before 1.0 the interface may change with every minor version
  set(auspex_compatibility SameMinorVersion)
endif()
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/auspexConfigVersion.cmake
  COMPATIBILITY ${auspex_compatibility})
install(FILES ${PROJECT_BINARY_DIR}/package/auspexConfig.cmake ${PROJECT_BINARY_DIR}/package/auspexConfigVersion.cmake
  cmake/auspex_vulkan.cmake DESTINATION ${auspex_package})

# --------------------------------------------------------------------------------------- pkg-config

# auspex.pc is the C interface: the shared library, or the static one where that alone is installed. auspex-cpp.pc is the
# C++ interface: it names the static library by its file, which -lauspex would not choose beside a shared one.
set(auspex_pc_folder ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
foreach(name LIBDIR INCLUDEDIR)
  string(TOLOWER ${name} lower)
  set(auspex_pc_${lower} "\${prefix}/${CMAKE_INSTALL_${name}}")
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${name}}")
    set(auspex_pc_${lower} "${CMAKE_INSTALL_${name}}")
  endif()
endforeach()
file(RELATIVE_PATH auspex_pc_prefix "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig" "${CMAKE_INSTALL_PREFIX}")
string(REGEX REPLACE "/$" "" auspex_pc_prefix "${auspex_pc_prefix}")

# What a program needs beside the static library: threads, the loader of libraries, and from C the C++ library.
set(auspex_pc_system)
if(NOT WIN32)
  set(auspex_pc_system "-pthread")
endif()
if(CMAKE_DL_LIBS AND NOT AUSPEX_NO_VULKAN)
  string(APPEND auspex_pc_system " -l${CMAKE_DL_LIBS}")
endif()
set(auspex_pc_system_c "${auspex_pc_system}")
foreach(library ${CMAKE_CXX_IMPLICIT_LINK_LIBRARIES})
  if(library MATCHES "^(stdc\\+\\+|c\\+\\+|c\\+\\+abi|m)$")
    string(APPEND auspex_pc_system_c " -l${library}")
  endif()
endforeach()

function(auspex_install_pc file)
  configure_file(cmake/auspex.pc.in ${PROJECT_BINARY_DIR}/package/${file} @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/package/${file} DESTINATION ${auspex_pc_folder})
endfunction()

set(auspex_pc_name auspex)
set(auspex_pc_description "runs hybrid language models: the C interface")
set(auspex_pc_cflags)
set(auspex_pc_libs "-L\${libdir} -lauspex ${auspex_pc_system_c}")
set(auspex_pc_libs_private)
if(TARGET auspex_shared)
  set(auspex_pc_libs "-L\${libdir} -lauspex")
  set(auspex_pc_libs_private "${auspex_pc_system_c}")
  if(WIN32)
    set(auspex_pc_cflags " -DAUSPEX_C_SHARED")
    set(auspex_pc_libs "-L\${libdir} -lauspex_shared")
  endif()
endif()
auspex_install_pc(auspex.pc)

if(auspex_install_static)
  set(auspex_pc_name auspex-cpp)
  set(auspex_pc_description "runs hybrid language models: the C++ interface, static")
  set(auspex_pc_cflags)
  set(file ${CMAKE_STATIC_LIBRARY_PREFIX}auspex${CMAKE_STATIC_LIBRARY_SUFFIX})
  set(auspex_pc_libs "\${libdir}/${file} ${auspex_pc_system}")
  if(UNIX AND NOT APPLE)  # pkg-config escapes spaces in the folder of -L only
    set(auspex_pc_libs "-L\${libdir} -l:${file} ${auspex_pc_system}")
  endif()
  set(auspex_pc_libs_private)
  auspex_install_pc(auspex-cpp.pc)
endif()
