#include "service.h"

namespace server {

HttpAnswer failed(const Failure& failure) { return json_answer(openai_error(failure), failure.status); }

void ReplyStore::add(const std::string& id, Json messages) {
    Entry entry{id, dump(messages)};
    const std::lock_guard<std::mutex> lock(mutex_);
    n_bytes_ += entry.messages.size();
    entries_.push_back(std::move(entry));
    while (entries_.size() > kMaxReplies || (n_bytes_ > kMaxBytes && entries_.size() > 1)) {
        n_bytes_ -= entries_.front().messages.size();
        entries_.pop_front();
    }
}

bool ReplyStore::find(const std::string& id, Json* messages) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Entry& e : entries_)
        if (e.id == id) return parse_json(e.messages, messages);
    return false;
}

Failure read_limits(const Json& body, GenerationRequest* to) {
    Failure failure;
    const Fields fields(body, "", &failure);
    for (const char* key : {"n_predict", "max_tokens", "max_completion_tokens"})
        fields.integer(key, -1, INT32_MAX, &to->n_max);
    fields.texts("stop", &to->stops);
    for (const std::string& stop : to->stops)
        if (stop.empty() && failure.ok()) failure = bad_request("stop has an empty string, which every text contains");
    fields.integer("thinking_budget_tokens", -1, INT32_MAX, &to->thinking_budget);
    int64_t n = 1;
    fields.integer("n", 1, 16, &n);
    to->n_choice = static_cast<uint32_t>(n);
    return failure;
}

void read_stream(const Fields& fields, StreamOptions* to) {
    fields.boolean("stream", &to->stream);
    const Json* options = fields.object("stream_options");
    if (!options) return;
    Failure failure;
    const Fields inner(*options, "stream_options.", &failure);
    inner.boolean("include_usage", &to->include_usage);
    if (!failure.ok()) fields.refuse("stream_options", "an object in which include_usage is true or false");
}

}  // namespace server
