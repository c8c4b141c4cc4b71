# What the compilers of Windows must be told to compile the library, or the single header: auspex_windows_options.
include(CheckCXXCompilerFlag)
set(auspex_windows_options)
if(MSVC)
  set(auspex_windows_options "$<$<COMPILE_LANGUAGE:CXX>:/bigobj;/utf-8;/permissive->")
elseif(MINGW AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Without optimisation the library as one unit has more sections than an object file takes otherwise.
  check_cxx_compiler_flag(-Wa,-mbig-obj AUSPEX_HAS_BIG_OBJ)
  if(AUSPEX_HAS_BIG_OBJ)
    list(APPEND auspex_windows_options -Wa,-mbig-obj)
  endif()
  # GCC saves vectors of 32 and 64 bytes on the stack with moves that need their alignment, and the stack of Windows is
  # aligned to 16 bytes: a page fault (GCC bug 54412). Debian's GCC is patched, not all others are. The assembler makes
  # unaligned moves of them, which take the same time.
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    check_cxx_compiler_flag(-Wa,-muse-unaligned-vector-move AUSPEX_HAS_UNALIGNED_MOVES)
    if(AUSPEX_HAS_UNALIGNED_MOVES)
      list(APPEND auspex_windows_options -Wa,-muse-unaligned-vector-move)
    elseif(NOT AUSPEX_NO_SIMD)
      message(WARNING "The assembler does not know -muse-unaligned-vector-move, without which GCC's code for AVX2 and "
        "AVX-512 crashes on Windows (GCC bug 54412): the SIMD kernels are left out, as by AUSPEX_NO_SIMD, and auspex "
        "is slow. Use binutils 2.38 or later.")
      set(AUSPEX_NO_SIMD ON)
    endif()
  endif()
  if(auspex_windows_options)
    set(auspex_windows_options "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:${auspex_windows_options}>")
  endif()
endif()
