#include "decoder.h"

#ifdef CPPHTTPLIB_ZLIB_SUPPORT
#include <zlib.h>
#endif
#ifdef CPPHTTPLIB_BROTLI_SUPPORT
#include <brotli/decode.h>
#endif

namespace server {

namespace {

constexpr size_t kPieceBytes = 16384;

class Identity final : public Decoder {
  public:
    bool read(const char* bytes, size_t n, const Give& give) override { return give(bytes, n); }
    bool is_complete() const override { return true; }
};

#ifdef CPPHTTPLIB_ZLIB_SUPPORT
/// gzip, and what HTTP calls deflate: zlib tells them apart.
class Zlib final : public Decoder {
  public:
    explicit Zlib(bool has_members) : has_members_(has_members) {}
    ~Zlib() override {
        if (is_open_) inflateEnd(&stream_);
    }
    Zlib(const Zlib&) = delete;
    Zlib& operator=(const Zlib&) = delete;
    bool read(const char* bytes, size_t n, const Give& give) override {
        if (!is_open_) return false;
        stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes));  // zlib does not write there
        stream_.avail_in = static_cast<uInt>(n);
        for (bool full = false; stream_.avail_in > 0 || full;) {
            // After a member of gzip another may follow (RFC 1952, 2.2).
            if (is_complete_ && (!has_members_ || inflateReset2(&stream_, 16 + MAX_WBITS) != Z_OK)) return false;
            char piece[kPieceBytes];
            stream_.next_out = reinterpret_cast<Bytef*>(piece);
            stream_.avail_out = kPieceBytes;
            const int result = inflate(&stream_, Z_NO_FLUSH);
            if (result == Z_BUF_ERROR) break;  // it had nothing left to give
            if (result != Z_OK && result != Z_STREAM_END) return false;
            is_complete_ = result == Z_STREAM_END;
            full = !is_complete_ && stream_.avail_out == 0;
            if (!give(piece, kPieceBytes - stream_.avail_out)) return false;
        }
        return stream_.avail_in == 0;
    }
    bool is_complete() const override { return is_complete_; }

  private:
    z_stream stream_ = {};
    const bool has_members_;
    const bool is_open_ = inflateInit2(&stream_, 32 + MAX_WBITS) == Z_OK;
    bool is_complete_ = false;
};
#endif

#ifdef CPPHTTPLIB_BROTLI_SUPPORT
class Brotli final : public Decoder {
  public:
    Brotli() : state_(BrotliDecoderCreateInstance(nullptr, nullptr, nullptr)) {}
    ~Brotli() override { BrotliDecoderDestroyInstance(state_); }
    Brotli(const Brotli&) = delete;
    Brotli& operator=(const Brotli&) = delete;
    bool read(const char* bytes, size_t n, const Give& give) override {
        if (!state_ || is_complete()) return state_ && n == 0;
        const auto* in = reinterpret_cast<const uint8_t*>(bytes);
        for (;;) {
            uint8_t piece[kPieceBytes];
            uint8_t* out = piece;
            size_t room = kPieceBytes;
            const BrotliDecoderResult result = BrotliDecoderDecompressStream(state_, &n, &in, &room, &out, nullptr);
            if (result == BROTLI_DECODER_RESULT_ERROR) return false;
            if (!give(reinterpret_cast<const char*>(piece), kPieceBytes - room)) return false;
            if (result != BROTLI_DECODER_RESULT_NEEDS_MORE_OUTPUT) return n == 0;
        }
    }
    bool is_complete() const override { return state_ && BrotliDecoderIsFinished(state_); }

  private:
    BrotliDecoderState* const state_;
};
#endif

}  // namespace

std::unique_ptr<Decoder> Decoder::create(const std::string& encoding) {
    if (encoding.empty() || encoding == "identity") return std::make_unique<Identity>();
#ifdef CPPHTTPLIB_ZLIB_SUPPORT
    if (encoding == "gzip" || encoding == "deflate") return std::make_unique<Zlib>(encoding == "gzip");
#endif
#ifdef CPPHTTPLIB_BROTLI_SUPPORT
    if (encoding == "br") return std::make_unique<Brotli>();
#endif
    return nullptr;
}

}  // namespace server
