// auspex.cpp: the spine. Every file of the library, in floor order.
//
// A file may include only what stands above it here; amalgamate.py enforces that, and makes
// single_include/auspex.hpp by pasting the files in this order. A new file is added here, below
// everything it includes. Compiled as it stands, this file is the whole library in one unit.
//
//   GROUND    bytes, numbers, text; knows nothing of models
//   PLAN      a model as a tape of operations: shape, but no time
//   MACHINE   runs tapes over buffers: bytes, but neither meaning nor past
//   ENGINE    timelines of tokens: time, but no shape
#include "auspex.hpp"

// GROUND
#include "base/base.h"
#include "base/base.cpp"
#include "base/number.h"
#include "base/number.cpp"
#include "base/number_encode.cpp"
#include "base/file.h"
#include "base/file.cpp"
#include "base/gguf.h"
#include "base/gguf.cpp"
#include "base/gguf_meta.cpp"
#include "base/gguf_writer.cpp"
#include "base/unicode.h"
#include "base/json.h"
#include "base/json.cpp"
#include "base/token_split.h"
#include "base/token_split.cpp"
#include "base/token.h"
#include "base/token.cpp"
#include "base/text_stream.h"
#include "base/text_stream.cpp"
#include "base/chat.h"
#include "base/chat.cpp"
#include "base/chat_request.cpp"
#include "base/chat_parse.cpp"

// PLAN
#include "plan/plan.h"
#include "plan/plan.cpp"
#include "plan/weights.h"
#include "plan/weights.cpp"
#include "plan/arch.h"
#include "plan/arch.cpp"
#include "plan/arch_qwen35.cpp"

// MACHINE
#include "machine/backend.h"

#include "machine/cpu/features.h"
#include "machine/cpu/features.cpp"
#include "machine/cpu/pool.h"
#include "machine/cpu/pool.cpp"
#include "machine/cpu/matmul.h"
#include "machine/cpu/pack.h"
#include "machine/cpu/pack.cpp"
#include "machine/cpu/matmul.cpp"
#include "machine/cpu/simd_avx2.h"
#include "machine/cpu/matmul_avx2.cpp"
#include "machine/cpu/simd_avx512.h"
#include "machine/cpu/matmul_avx512.cpp"
#include "machine/cpu/simd_neon.h"
#include "machine/cpu/matmul_neon.cpp"
#include "machine/cpu/ops.h"
#include "machine/cpu/loops_reference.cpp"
#include "machine/cpu/loops_avx2.cpp"
#include "machine/cpu/loops_avx512.cpp"
#include "machine/cpu/loops_neon.cpp"
#include "machine/cpu/cpu.h"
#include "machine/cpu/lane.h"
#include "machine/cpu/lane.cpp"
#include "machine/cpu/walk.cpp"
#include "machine/cpu/cpu.cpp"

// ENGINE
#include "engine/model.h"
#include "engine/model.cpp"
#include "engine/sample.h"
#include "engine/sample.cpp"
#include "engine/session.h"
#include "engine/session.cpp"
#include "engine/text_stream.cpp"
