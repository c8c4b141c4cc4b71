// server/text: tokens and prompts of texts, without the model's computing anything.
//
// Tests   tests/test_server_http.py
#include "service.h"

namespace server {

namespace {

constexpr size_t kLongText = size_t{1} << 20;  ///< bytes, above which texts are tokenized one at a time

/// A token's bytes: text if they are UTF-8, else a list of numbers.
Json piece(const std::string& bytes) {
    if (is_utf8(bytes)) return bytes;
    Json list = Json::array();
    for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
    return list;
}

}  // namespace

HttpAnswer tokenize(Service& s, const HttpRequest& r) {
    Json body;
    Failure failure = open_body(s, r, &body);
    if (!failure.ok()) return failed(failure);
    const Fields fields(body, "", &failure);
    std::string content;
    bool add_special = false, parse_special = true, with_pieces = false;
    if (!fields.text("content", &content)) fields.refuse("content", "a string");
    fields.boolean("add_special", &add_special);
    fields.boolean("parse_special", &parse_special);
    fields.boolean("with_pieces", &with_pieces);
    if (!failure.ok()) return failed(failure);
    std::unique_lock<std::mutex> alone(s.long_texts, std::defer_lock);
    if (content.size() > kLongText) alone.lock();
    std::vector<Token> ids;
    Status status = s.engine.model().encode(content, {parse_special, add_special}).get(ids);
    HttpAnswer a;  // written as text: a Json for each token takes several times as much memory
    a.body = "{\"tokens\":[";
    for (size_t i = 0; i < ids.size() && status.ok(); ++i) {
        if (i > 0) a.body += ',';
        std::string bytes;
        if (with_pieces) status = s.engine.model().decode(Span<const Token>(&ids[i], 1), {true}).get(bytes);
        a.body += with_pieces ? dump({{"id", ids[i]}, {"piece", piece(bytes)}}) : std::to_string(ids[i]);
    }
    a.body += "]}";
    return status.ok() ? a : failed(from_status(status));
}

HttpAnswer detokenize(Service& s, const HttpRequest& r) {
    Json body;
    Failure failure = open_body(s, r, &body);
    if (!failure.ok()) return failed(failure);
    const Fields fields(body, "", &failure);
    const Json* tokens = fields.list("tokens");
    if (!tokens) fields.refuse("tokens", "a list of token ids");
    std::vector<Token> ids;
    if (failure.ok()) failure = read_ids(s, *tokens, "tokens", &ids);
    if (!failure.ok()) return failed(failure);
    std::string content;
    const Status status = s.engine.model().decode(ids, {true}).get(content);
    return status.ok() ? json_answer({{"content", content}}) : failed(from_status(status));
}

HttpAnswer apply_template(Service& s, const HttpRequest& r) {
    Json body;
    Failure failure = open_body(s, r, &body);
    Conversation conversation;
    if (failure.ok()) failure = read_conversation(body, &conversation);
    auspex::ChatPrompt prompt;
    std::vector<std::string> tools;
    if (failure.ok()) failure = render(s.engine, conversation, s.defaults, &prompt, &tools);
    if (!failure.ok()) return failed(failure);
    return json_answer({{"prompt", prompt.text()}});
}

}  // namespace server
