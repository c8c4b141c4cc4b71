# The target auspex_server, unless cpp-httplib is missing or is another version than this code is written for.
include(CheckCXXSourceCompiles)
find_path(AUSPEX_HTTPLIB httplib.h)
# Debian installs a split header and a library; the whole header has a line that says where it may be split.
if(AUSPEX_HTTPLIB AND NOT EXISTS "${AUSPEX_HTTPLIB}/httplib.h")
  message(STATUS "No httplib.h in ${AUSPEX_HTTPLIB}: auspex-server and `auspex serve` are left out; give the folder of "
    "cpp-httplib's header by -DAUSPEX_HTTPLIB=")
  return()
endif()
if(AUSPEX_HTTPLIB)
  file(STRINGS ${AUSPEX_HTTPLIB}/httplib.h auspex_httplib_whole REGEX "Implementation that will be part of the .cc" LIMIT_COUNT 1)
  file(SHA256 ${AUSPEX_HTTPLIB}/httplib.h auspex_httplib_header)
endif()
if(auspex_httplib_whole)
  set(AUSPEX_HTTPLIB_LIBRARY "")
else()
  find_library(AUSPEX_HTTPLIB_LIBRARY cpp-httplib)
endif()
set(auspex_httplib_flags)
set(auspex_httplib_needs Threads::Threads $<$<BOOL:${WIN32}>:ws2_32>)
if(AUSPEX_HTTPLIB_LIBRARY)  # definitions decide how large its classes are
  list(APPEND auspex_httplib_needs ${AUSPEX_HTTPLIB_LIBRARY} z brotlidec)
  find_package(PkgConfig QUIET)
  if(PkgConfig_FOUND)
    pkg_check_modules(AUSPEX_HTTPLIB_PACKAGE QUIET cpp-httplib)
  endif()
  set(auspex_httplib_flags -DCPPHTTPLIB_OPENSSL_SUPPORT -DCPPHTTPLIB_ZLIB_SUPPORT -DCPPHTTPLIB_BROTLI_SUPPORT)
  if(AUSPEX_HTTPLIB_PACKAGE_FOUND)
    set(auspex_httplib_flags ${AUSPEX_HTTPLIB_PACKAGE_CFLAGS_OTHER})
  endif()
endif()
if(AUSPEX_HTTPLIB)
  # The answer is kept until another library is found, or the probe changes.
  file(SHA256 ${PROJECT_SOURCE_DIR}/examples/server/httplib_server.h auspex_httplib_key)
  string(APPEND auspex_httplib_key ";${auspex_httplib_header};${AUSPEX_HTTPLIB};${AUSPEX_HTTPLIB_LIBRARY};${auspex_httplib_flags}")
  if(NOT AUSPEX_HTTPLIB_ASKED STREQUAL auspex_httplib_key)
    unset(AUSPEX_HTTPLIB_FITS CACHE)
    set(AUSPEX_HTTPLIB_ASKED "${auspex_httplib_key}" CACHE INTERNAL "What AUSPEX_HTTPLIB_FITS is about")
  endif()
  set(CMAKE_REQUIRED_INCLUDES ${AUSPEX_HTTPLIB} ${PROJECT_SOURCE_DIR}/examples/server)
  set(CMAKE_REQUIRED_FLAGS -std=c++17)
  set(CMAKE_REQUIRED_LIBRARIES ${auspex_httplib_needs})
  set(CMAKE_REQUIRED_DEFINITIONS ${auspex_httplib_flags})
  check_cxx_source_compiles("#include <httplib_server.h>
    struct Probe : server::HttplibServer {
      bool process_and_close_socket(socket_t) override {
        server::RequestLineStream s(std::string(), 0, nullptr);
        return process_one(*this, s, EndHead());
      }
    };
    int main() { Probe probe; return probe.is_running() ? 1 : 0; }" AUSPEX_HTTPLIB_FITS)
  unset(CMAKE_REQUIRED_INCLUDES)
  unset(CMAKE_REQUIRED_FLAGS)
  unset(CMAKE_REQUIRED_LIBRARIES)
  unset(CMAKE_REQUIRED_DEFINITIONS)
endif()
if(NOT AUSPEX_HTTPLIB)
  message(STATUS "No cpp-httplib (Debian: libcpp-httplib-dev): auspex-server and `auspex serve` are left out")
  return()
endif()
if((AUSPEX_STATIC OR WIN32) AND NOT auspex_httplib_whole)  # in a library MinGW's thread_local stays broken: httplib_server.h
  message(STATUS "The header in ${AUSPEX_HTTPLIB} is a part of cpp-httplib, a static build and one for Windows need the "
    "whole one: auspex-server and `auspex serve` are left out; give its folder by -DAUSPEX_HTTPLIB=")
  return()
endif()
if(NOT AUSPEX_HTTPLIB_FITS)
  message(STATUS "cpp-httplib in ${AUSPEX_HTTPLIB} with the library '${AUSPEX_HTTPLIB_LIBRARY}' does not fit, "
    "expected 0.11 to 0.41: auspex-server and `auspex serve` are left out")
  return()
endif()

# The page at "/" becomes a string.
set(auspex_page ${PROJECT_SOURCE_DIR}/examples/server/page.html)
file(READ ${auspex_page} auspex_page_text)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${auspex_page})
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/server/page.cpp CONTENT "#include \"page.h\"
namespace server {
std::string page_text() { return R\"page(@auspex_page_text@)page\"; }
}  // namespace server
" @ONLY)

file(GLOB auspex_server_sources CONFIGURE_DEPENDS examples/server/*.cpp examples/server/*.h)
add_executable(auspex_server ${auspex_server_sources} ${PROJECT_BINARY_DIR}/server/page.cpp)
set_target_properties(auspex_server PROPERTIES OUTPUT_NAME auspex-server UNITY_BUILD ${AUSPEX_UNITY_CLI} UNITY_BUILD_BATCH_SIZE 20)
set_source_files_properties(examples/server/http.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)  # long enough by itself
if(NOT MSVC)  # loops over a row of logits for each token
  set_source_files_properties(examples/server/log_softmax.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON
    COMPILE_OPTIONS $<$<CONFIG:Release>:-O3>)
endif()
target_include_directories(auspex_server PRIVATE examples/server)
target_include_directories(auspex_server SYSTEM PRIVATE ${AUSPEX_HTTPLIB})
target_compile_options(auspex_server PRIVATE ${auspex_httplib_flags})
target_link_libraries(auspex_server PRIVATE auspex_cli auspex_light_flags ${auspex_httplib_needs})
