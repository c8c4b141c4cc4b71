// base/chat: messages to prompt text, and replies back to messages.
//
// Owns    the native renderers of the templates it recognises (ChatML, Qwen3.5, Qwen3.6, unsloth's
//         Qwen3.6), reading requests (chat_request.cpp), taking replies apart (chat_parse.cpp).
//         The functions themselves stand at the door: render_chat, recognise_template, parse_reply.
// Reads   json, unicode, the door's chat vocabulary.
// Serves  engine (Model::render), applications through the door.
// Thread  none of its own; pure functions.
// Laws    exact text: tests/test_chat.cpp. HotPath: tests/fuzz_chat.cpp.
#pragma once
#include "json.h"
#include "unicode.h"

namespace auspex {
namespace detail {

/// What the Qwen3.5 and 3.6 templates tell the model after the list of tools.
extern const char kToolInstructions[];

/// The text with "\r" left out and without white space at its end, as one number (FNV-1a, 64 bit):
/// how a template is known to the letter.
uint64_t template_fingerprint(std::string_view jinja);

/// Messages are counted from 0 in messages to the caller: "messages[2]".
inline std::string message_path(size_t i) { return say("messages[", i, "]"); }

}  // namespace detail
}  // namespace auspex
