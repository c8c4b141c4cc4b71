#include "service.h"

namespace server {

HttpAnswer failed(const Failure& failure) { return json_answer(openai_error(failure), failure.status); }

void IdStore::add(const std::string& id, const Json& value) {
    std::string text = dump(value);
    const size_t n_bytes = text.size();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!values_.emplace(id, std::move(text)).second) return;
    n_bytes_ += n_bytes;
    ids_.push_back(id);
    while (ids_.size() > max_ids_ || (n_bytes_ > max_bytes_ && ids_.size() > 1)) {
        const auto oldest = values_.find(ids_.front());
        n_bytes_ -= oldest->second.size();
        values_.erase(oldest);
        ids_.pop_front();
    }
}

bool IdStore::find(const std::string& id, Json* value) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = values_.find(id);
    return found != values_.end() && parse_json(found->second, value);
}

Json IdStore::select(const std::function<bool(const Json&)>& wanted) const {
    Json found = Json::object();
    Members& all = found.get_ref<Json::object_t&>();  // no two ids are the same: operator[] would look for each
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const std::string& id : ids_) {
        Json value;
        if (parse_json(values_.at(id), &value) && wanted(value)) all.emplace_back(id, std::move(value));
    }
    return found;
}

Failure open_body(const Service& s, const HttpRequest& r, Json* body) {
    const Failure failure = s.engine.check();
    return failure.ok() ? parse_body(r.body, body) : failure;
}

Failure read_ids(const Service& s, const Json& list, const std::string& field, std::vector<Token>* to) {
    const uint32_t n_vocab = s.engine.model().info().n_vocab;
    for (const Json& id : list) {
        if (!id.is_number_unsigned() || id.get<uint64_t>() >= n_vocab)
            return bad_request(field + " has " + describe(id) + ", expected token ids from 0 to " +
                               std::to_string(n_vocab - 1));
        to->push_back(id.get<Token>());
    }
    return {};
}

void read_thinking_budget(const Fields& fields, GenerationRequest* to) {
    if (const Json* thinking = fields.object("thinking"))
        fields.inside(*thinking, "thinking.").integer("budget_tokens", 0, INT32_MAX, &to->thinking_budget);
}

Failure read_limits(const Json& body, GenerationRequest* to) {
    Failure failure;
    const Fields fields(body, "", &failure);
    for (const char* key : {"n_predict", "max_tokens", "max_completion_tokens"})
        fields.integer(key, -1, INT32_MAX, &to->n_max);
    fields.texts("stop", &to->stops);
    for (const std::string& stop : to->stops)
        if (stop.empty()) fields.keep(bad_request("stop has an empty string, which every text contains"));
    fields.integer("thinking_budget_tokens", -1, INT32_MAX, &to->thinking_budget);
    int64_t n = 1;
    fields.integer("n", 1, 16, &n);
    to->n_choice = static_cast<uint32_t>(n);
    fields.refuse_wish("max_output_tokens", "use max_tokens");
    fields.refuse_wish("stop_sequences", "use stop");
    refuse_extensions(fields, "json_schema or grammar");
    return failure;
}

void refuse_extensions(const Fields& fields, const std::string& form) {
    for (const char* key : {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"})
        fields.refuse_wish(key, "use " + form);
    fields.refuse_wish("n_probs", "use logprobs of /v1/completions, or top_logprobs of /v1/chat/completions");
    fields.refuse_wish("ignore_eos", "give the end token a logit_bias of -100");
}

void refuse_choices(const Fields& fields) {
    const Json* n = fields.find("n");
    if (n && *n != 1) fields.refuse_wish("n", "use /v1/chat/completions, or send the request again");
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
