// cli/printable: text from files and devices, made safe for a terminal.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace cli {

/// `text` with every control character written as an escape ("\x1b", also DEL and the C1 controls) and every byte
/// that is not UTF-8 as "\xff". Line feeds and tabs stay with `lines`.
///
/// Everything that a model file, a device or a driver names goes through this before it reaches stdout or stderr.
/// Text that a model generates does not: it is the output itself.
std::string printable(std::string_view text, bool lines = false);

/// JSON on one line, without the line feed. Also escapes DEL and the C1 controls, which a terminal would act on. Bytes
/// that are not UTF-8 become U+FFFD.
std::string json_line(const nlohmann::ordered_json& json);

/// The offset of the first byte that is not UTF-8 (RFC 3629), or the size of the text.
size_t find_bad_utf8(std::string_view text);

}  // namespace cli
