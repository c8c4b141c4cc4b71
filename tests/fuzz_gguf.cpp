// Fuzz target: any bytes are parsed, read and joined as shards without a crash, a read past the end or undefined
// behaviour. Built with -DAUSPEX_FUZZ=ON.
#include "../src/base/gguf.h"
#include "encode.h"

#include <cmath>

namespace {

using namespace auspex;
using namespace auspex::detail;

void demand(bool holds) {
    if (!holds) std::abort();
}

/// Reads everything that a caller could read. The result keeps the compiler from removing the reads.
uint64_t walk(const Gguf& g, const uint8_t* begin, size_t size, bool whole) {
    uint64_t sum = g.version();
    for (const Meta& m : g.meta()) {
        demand(g.find(m.key) == &m);
        demand(m.strings.size() == (m.type == MetaType::string ? m.n : 0));
        for (const std::string_view s : m.strings)
            for (const char c : s) sum += static_cast<unsigned char>(c);
        for (uint64_t i = 0; i < m.n && i < 4096; ++i) {
            int64_t v = 0;
            double f = 0;
            if (m.get_int(i, &v)) sum += static_cast<uint64_t>(v);
            if (m.get_float(i, &f)) sum += std::isnan(f) ? 1 : 0;
        }
        int64_t past = 0;
        demand(!m.get_int(m.n, &past));
        sum += g.get_u32(m.key).ok();
        sum += g.get_f32(m.key).ok();
        sum += g.get_bool(m.key, true).ok();
        sum += g.get_string(m.key).ok();
        sum += g.get_u32s(m.key, 3).ok();
        sum += g.get_f32s(m.key, static_cast<uint32_t>(m.n & 1023)).ok();
    }
    float row[4096];
    for (const Tensor& t : g.tensors()) {
        demand(g.tensor(t.name) == &t);
        demand(type_info(t.type).supported && t.bytes > 0);
        const uint8_t* data = reinterpret_cast<const uint8_t*>(t.data);
        if (whole) demand(data == begin + t.file_offset && t.bytes <= size - t.file_offset);
        demand(row_bytes(t.type, t.ne[0]) * t.ne[1] * t.ne[2] * t.ne[3] == t.bytes);
        sum += data[0] + data[t.bytes - 1];
        if (t.ne[0] <= 4096) {
            decode_row(t.type, t.data, row, static_cast<size_t>(t.ne[0]));
            uint8_t packed[sizeof row];
            test::encode(t.type, row, packed, static_cast<size_t>(t.ne[0]));
            sum += packed[0];
        }
    }
    return sum;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const Span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
    Result<Gguf> parsed = Gguf::parse(file);
    demand(parsed.ok() || !parsed.status().text.empty());
    if (!parsed.ok()) return 0;
    volatile uint64_t sink = walk(parsed.value(), data, size, true);

    const size_t half = size / 2;  // as shards: alone, then split where it may or may not make sense
    std::vector<Gguf> shards;
    Result<Gguf> second = Gguf::parse(file.subspan(half, size - half));
    shards.push_back(parsed.value());
    if (second.ok()) shards.push_back(second.value());
    const Result<Gguf> joined = Gguf::join(std::move(shards));
    demand(joined.ok() || !joined.status().text.empty());
    if (joined.ok()) sink = sink + walk(joined.value(), data, size, false);
    return 0;
}
