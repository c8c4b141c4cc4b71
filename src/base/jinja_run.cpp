#include "jinja_run.h"

#include "float_mode.h"
#include "unicode.h"

#include <cmath>

AUSPEX_SMALL_CODE_BEGIN
namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace jinja {
namespace run_impl {

/// An index into n elements: a negative one counts from the end. False: there is no such element.
bool in_range(int64_t i, size_t n, size_t* to) {
    if (i < 0) i += static_cast<int64_t>(n);
    if (i < 0 || i >= static_cast<int64_t>(n)) return false;
    *to = static_cast<size_t>(i);
    return true;
}

/// The places that Python's slice [from:to:step] of n elements takes. An absent bound is undefined.
std::vector<size_t> slice_places(const Value& from, const Value& to, int64_t step, size_t count) {
    const int64_t n = static_cast<int64_t>(count);
    const auto bound = [n, step](const Value& v, int64_t absent) {
        if (!v.is_number()) return absent;
        int64_t at = v.integer;
        if (at < 0) at += n;
        return step > 0 ? std::max<int64_t>(0, std::min(at, n)) : std::max<int64_t>(-1, std::min(at, n - 1));
    };
    const int64_t begin = bound(from, step > 0 ? 0 : n - 1), end = bound(to, step > 0 ? n : -1);
    std::vector<size_t> places;
    for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
        places.push_back(static_cast<size_t>(i));
        if (step > n || step < -n) break;
    }
    return places;
}

}  // namespace run_impl

size_t count_characters(std::string_view text) {
    size_t count = 0, n = 0;
    for (size_t at = 0; at < text.size(); at += n, ++count) decode_utf8(text.data() + at, text.size() - at, &n);
    return count;
}

std::vector<size_t> Run::character_starts(std::string_view text) {
    std::vector<size_t> starts;
    const size_t max = heap.max_bytes / sizeof(size_t);
    if (text.size() > max) {
        wrong("a text of ", text.size(), " bytes, at most ", max, " can be taken apart into characters");
        text = {};
    }
    size_t n = 0;
    for (size_t at = 0; at < text.size(); at += n) {
        starts.push_back(at);
        decode_utf8(text.data() + at, text.size() - at, &n);
    }
    starts.push_back(text.size());
    return starts;
}

void Run::set(std::string_view name, const Value& value) { scopes_.back().names.insert_or_assign(name, value); }

Result<Marked> Run::run() {
    const DefaultFloatMode mode;  // the prompt must not depend on the caller's
    Marked text = captured(program_.body);
    if (failed()) return std::move(status_);
    return text;
}

Value Run::wrong_parts(const Part* parts, size_t n) {
    if (!failed()) status_ = fail(Code::bad_argument, "the chat template, line ", line_, ": ", say_parts(parts, n));
    return Value();
}

Marked Run::text_of(const Value& v) {
    Marked text;
    if (const Status s = to_text(v, heap.max_bytes).get(text); !s.ok()) wrong(s.text);
    if (!v.is(Value::Kind::string)) step(text.text.size() / 16);
    return text;
}

bool Run::step(uint64_t n) {
    if (failed()) return false;
    n_step_ += n;
    if (n_step_ > max_steps) wrong("it takes more than ", max_steps, " steps");
    if (depth_ > kMaxRunDepth) wrong("it nests more than ", kMaxRunDepth, " levels deep: does a macro call itself?");
    if (heap.full() || (out_ != nullptr && out_->bytes() > heap.max_bytes))
        wrong("it needs more than ", heap.max_bytes >> 20, " MiB");
    return !failed();
}

bool Run::step_search(const std::string& text, const std::string& part) {
    return step(text.size() < part.size() ? 0 : uint64_t{text.size()} * part.size() / 4096);
}

bool Run::fits(const Marked& text) {
    if (text.bytes() > heap.max_bytes) wrong("a text of more than ", heap.max_bytes >> 20, " MiB");
    return !failed();
}

Marked Run::captured(uint32_t body) {
    Marked text;
    Marked* const before = std::exchange(out_, &text);
    statement(body);
    out_ = before;
    return text;
}

// ---------------------------------------------------------------------------------- statements

Run::Flow Run::statement(uint32_t id) {
    const Level level(depth_);
    const Node& n = program_.nodes[id];
    line_ = n.line;
    if (!step()) return Flow::next;
    switch (n.op) {
        case Op::body:
            for (const uint32_t part : n.parts) {
                const Flow flow = statement(part);
                if (flow != Flow::next || failed()) return flow;
            }
            return Flow::next;
        case Op::text: out_->add(n.text, true); return Flow::next;
        case Op::print: out_->add(text_of(expression(n.a))); return Flow::next;
        case Op::if_:
            for (size_t i = 0; i < n.parts.size(); i += 2) {
                const bool holds = expression(n.parts[i]).truth();
                if (failed()) return Flow::next;
                if (holds) return statement(n.parts[i + 1]);
            }
            return n.b != 0 ? statement(n.b) : Flow::next;
        case Op::for_: {
            const Value over = expression(n.a);
            return failed() ? Flow::next : for_statement(id, over, 0);
        }
        case Op::scope: return scope_statement(n);
        case Op::set: assign(n.names, expression(n.a)); return Flow::next;
        case Op::set_member: set_member(n); return Flow::next;
        case Op::macro: set(n.text, node_value(Value::Kind::macro, id, scopes_.size() - 1)); return Flow::next;
        case Op::call_block: {
            const Value caller = node_value(Value::Kind::macro, n.a, scopes_.size() - 1);
            out_->add(text_of(call(program_.nodes[n.b], &caller)));
            return Flow::next;
        }
        case Op::break_: return Flow::break_;
        case Op::continue_: return Flow::continue_;
        default: return Flow::next;
    }
}

Run::Flow Run::scope_statement(const Node& n) {
    std::vector<Value> values;
    for (const uint32_t part : n.parts) values.push_back(expression(part));
    push_scope();
    for (size_t i = 0; i < values.size(); ++i) set(n.names[i], values[i]);
    const Flow flow = statement(n.a);
    scopes_.pop_back();
    return flow;
}

void Run::assign(const std::vector<std::string>& names, const Value& value) {
    if (failed()) return;
    if (names.size() == 1) {
        set(names[0], value);
        return;
    }
    std::vector<Value> items;
    if (!elements(value, &items)) return;
    if (items.size() != names.size()) {
        wrong("expected ", names.size(), " values, found ", items.size());
        return;
    }
    for (size_t i = 0; i < names.size(); ++i) set(names[i], items[i]);
}

void Run::set_member(const Node& n) {
    const Value value = expression(n.a);
    const Value space = name(n.text);
    if (!step(space.weight())) return;
    if (!space.is(Value::Kind::name_space)) {
        wrong(quote(n.text), " is ", space.kind_name(), ", expected a namespace");
        return;
    }
    if (Value* old = space.find(n.names[0]); old != nullptr) {
        *old = value;
        return;
    }
    heap.charge(sizeof(std::string) + sizeof(Value));
    space.data->add(std::string(n.names[0]), Value::Kind::string, value);
}

/// What a loop runs over, without what its condition leaves out.
bool Run::loop_items(const Node& n, const Value& over, std::vector<Value>* to) {
    std::vector<Value> all;
    if (!elements(over, &all)) return false;
    if (n.parts[0] == 0) {
        *to = std::move(all);
        return true;
    }
    push_scope();
    for (const Value& v : all) {
        assign(n.names, v);
        if (expression(n.parts[0]).truth()) to->push_back(v);
        if (failed()) break;
    }
    scopes_.pop_back();
    return !failed();
}

Run::Flow Run::for_statement(uint32_t id, const Value& over, size_t depth) {
    const Node& n = program_.nodes[id];
    std::vector<Value> items;
    if (!loop_items(n, over, &items)) return Flow::next;
    const size_t count = items.size();
    if (count == 0) {
        if (n.c == 0) return Flow::next;
        push_scope();
        const Flow flow = statement(n.c);
        scopes_.pop_back();
        return flow;
    }
    Value loop = node_value(Value::Kind::loop, id, depth);
    heap.charge(count * sizeof(Value));
    Data* const data = heap.make(Value::Kind::loop, &loop);
    items.emplace_back();
    data->items = std::move(items);
    push_scope();
    for (size_t i = 0; i < count && !failed(); ++i) {
        scopes_.back().names.clear();
        data->i = i;
        set("loop", loop);
        assign(n.names, data->items[i]);
        if (statement(n.b) == Flow::break_) break;
    }
    scopes_.pop_back();
    return Flow::next;
}

// --------------------------------------------------------------------------------- expressions

Value Run::expression(uint32_t id) {
    const Level level(depth_);
    const Node& n = program_.nodes[id];
    if (!step()) return Value();
    const uint32_t line = std::exchange(line_, n.line);
    const Value v = evaluate(n);
    if (step(v.weight())) line_ = line;
    return v;
}

Value Run::evaluate(const Node& n) {
    switch (n.op) {
        case Op::none: return Heap::plain(Value::Kind::none);
        case Op::true_:
        case Op::false_: return Heap::boolean(n.op == Op::true_);
        case Op::integer: return Heap::integer(n.integer);
        case Op::real: return Heap::real(json_double(n.text));
        case Op::string: return heap.string(Marked(n.text, true));
        case Op::block: return heap.string(captured(n.a));
        case Op::name: return name(n.text);
        case Op::list: return heap.list(arguments(n).items, n.code);
        case Op::map: return map(n);
        case Op::member: {
            const Value of = expression(n.a);
            if (!is_method(of, n.text)) return member(of, n.text, program_.nodes[n.a]);
            return Heap::plain(Value::Kind::function, static_cast<int64_t>(Function::method));
        }
        case Op::item: return item(n);
        case Op::slice: return slice(n);
        case Op::call: return call(n);
        case Op::filter: {
            const Value v = expression(n.a);
            const Arguments args = arguments(n);
            return failed() ? Value() : filter(static_cast<Filter>(n.code), v, args);
        }
        case Op::test: {
            const Value v = expression(n.a);
            const Value argument = n.parts.empty() ? Value() : expression(n.parts[0]);
            return failed() ? Value() : Heap::boolean(test(static_cast<Test>(n.code), v, argument));
        }
        case Op::not_: return Heap::boolean(!expression(n.a).truth());
        case Op::negate: {
            const Value v = expression(n.a);
            // 0 - 0.0 has lost the sign.
            return v.is(Value::Kind::real) ? Heap::real(-v.number())
                                           : arithmetic(Binary::subtract, Heap::integer(0), v);
        }
        case Op::and_:
        case Op::or_: {
            const Value left = expression(n.a);
            return failed() || left.truth() == (n.op == Op::or_) ? left : expression(n.b);
        }
        case Op::choose: {
            const bool holds = expression(n.b).truth();
            return failed() ? Value() : holds ? expression(n.a) : n.c != 0 ? expression(n.c) : Value();
        }
        case Op::binary: return binary(n);
        default: return Value();
    }
}

Value Run::name(std::string_view name) {
    for (size_t i = scopes_.size() - 1;; i = scopes_[i].parent) {
        const auto found = scopes_[i].names.find(name);
        ++n_step_;
        if (found != scopes_[i].names.end()) return found->second;
        if (i == 0) break;
    }
    Function f = Function::dict;
    return find_function(name, &f) ? Heap::plain(Value::Kind::function, static_cast<int64_t>(f)) : Value();
}

Value Run::map(const Node& n) {
    MapMaker map;
    for (size_t i = 0; i < n.parts.size() && !failed(); i += 2) {
        const Value key = expression(n.parts[i]), value = expression(n.parts[i + 1]);
        add_member(map, key, value);
    }
    return failed() ? Value() : map.made(heap);
}

void Run::add_member(MapMaker& map, const Value& key, const Value& value) {
    if (!map.add(key, value)) wrong(key.kind_name(), " is no key of a map, expected a string, an integer or none");
}

Value Run::member(const Value& of, std::string_view name, const Node& n) {
    if (failed()) return Value();
    if (of.is(Value::Kind::undefined)) return wrong(n.text.empty() ? "a value" : quote(n.text), " is undefined");
    if (!of.is(Value::Kind::loop)) return member_of(of, name);
    const Data& loop = *of.data;
    const int64_t i = static_cast<int64_t>(loop.i), count = static_cast<int64_t>(loop.items.size()) - 1;
    if (name == "index") return Heap::integer(i + 1);
    if (name == "index0") return Heap::integer(i);
    if (name == "first") return Heap::boolean(i == 0);
    if (name == "last") return Heap::boolean(i + 1 == count);
    if (name == "length") return Heap::integer(count);
    if (name == "revindex") return Heap::integer(count - i);
    if (name == "revindex0") return Heap::integer(count - i - 1);
    if (name == "depth" || name == "depth0") return Heap::integer((of.integer >> 32) + (name == "depth" ? 1 : 0));
    if (name == "previtem" && i > 0) return loop.items[loop.i - 1];
    if (name == "nextitem" && i + 1 < count) return loop.items[loop.i + 1];
    return Value();
}

Value Run::member_of(const Value& of, std::string_view name) {
    if (of.is(Value::Kind::list) && of.integer == kGroup)
        return name == "grouper" ? of.items()[0] : name == "list" ? of.items()[1] : Value();
    const Value* found = of.find(name);
    return found != nullptr ? *found : Value();
}

Value Run::item(const Node& n) {
    const Value of = expression(n.a), key = expression(n.b);
    if (failed()) return Value();
    if (key.is(Value::Kind::string)) return member(of, key.text(), program_.nodes[n.a]);
    if (of.is(Value::Kind::undefined)) return member(of, "", program_.nodes[n.a]);
    return item_of(of, key);
}

Value Run::item_of(const Value& of, const Value& key) {
    if (of.is_map()) {
        const Value* found = of.find(key);
        return found != nullptr ? *found : Value();
    }
    if (key.is(Value::Kind::string)) return member_of(of, key.text());
    size_t at = 0;
    if (!key.is_number() || key.is(Value::Kind::real)) return Value();
    if (of.is(Value::Kind::list))
        return run_impl::in_range(key.integer, of.items().size(), &at) ? of.items()[at] : Value();
    if (!of.is(Value::Kind::string)) return Value();
    const std::vector<size_t> starts = character_starts(of.text());
    if (!run_impl::in_range(key.integer, starts.size() - 1, &at)) return Value();
    return heap.string(of.marked().cut(starts[at], starts[at + 1]));
}

Value Run::slice(const Node& n) {
    const Value of = expression(n.a);
    Value bound[3];
    for (size_t i = 0; i < 3 && !failed(); ++i)
        if (n.parts[i] != 0) {
            bound[i] = expression(n.parts[i]);
            if (bound[i].is(Value::Kind::real) || bound[i].is(Value::Kind::string))
                return wrong("a bound of a slice is ", bound[i].kind_name(), ", expected an integer");
        }
    if (failed()) return Value();
    const int64_t step = bound[2].is_number() ? bound[2].integer : 1;
    if (step == 0) return wrong("the step of a slice is 0");
    if (of.is(Value::Kind::list)) {
        std::vector<Value> items;
        for (const size_t at : run_impl::slice_places(bound[0], bound[1], step, of.items().size()))
            items.push_back(of.items()[at]);
        return heap.list(std::move(items), of.integer);
    }
    if (!of.is(Value::Kind::string)) return wrong(of.kind_name(), " cannot be cut into slices");
    const std::vector<size_t> starts = character_starts(of.text());
    const std::vector<size_t> places = run_impl::slice_places(bound[0], bound[1], step, starts.size() - 1);
    Marked text;
    if (step == 1 && !places.empty())
        text = of.marked().cut(starts[places.front()], starts[places.back() + 1]);
    else
        for (const size_t at : places) text.add(of.marked().cut(starts[at], starts[at + 1]));
    return heap.string(std::move(text));
}

Arguments Run::arguments(const Node& n) {
    Arguments args;
    if (!n.names.empty()) args.names = &n.names;
    for (const uint32_t part : n.parts) {
        args.items.push_back(expression(part));
        if (failed()) break;
    }
    return args;
}

Value Run::binary(const Node& n) {
    const Value a = expression(n.a), b = expression(n.b);
    if (failed()) return Value();
    const Binary op = static_cast<Binary>(n.code);
    switch (op) {
        case Binary::add: return add(a, b);
        case Binary::concat: {
            Marked text = text_of(a);
            text.add(text_of(b));
            return heap.string(std::move(text));
        }
        case Binary::equal: return Heap::boolean(same(a, b));
        case Binary::not_equal: return Heap::boolean(!same(a, b));
        case Binary::less: return Heap::boolean(less(a, b));
        case Binary::greater: return Heap::boolean(less(b, a));
        case Binary::less_equal: return Heap::boolean(!less(b, a));
        case Binary::greater_equal: return Heap::boolean(!less(a, b));
        case Binary::in: return Heap::boolean(contains(b, a));
        case Binary::not_in: return Heap::boolean(!contains(b, a));
        case Binary::subtract:
        case Binary::multiply:
        case Binary::divide:
        case Binary::floor_divide:
        case Binary::modulo:
        case Binary::power: break;
    }
    const auto is_count = [](const Value& v) { return v.is(Value::Kind::integer) || v.is(Value::Kind::boolean); };
    const auto is_run = [](const Value& v) { return v.is(Value::Kind::string) || v.is(Value::Kind::list); };
    if (op == Binary::multiply && is_run(a) && is_count(b)) return repeated(a, b.integer);
    if (op == Binary::multiply && is_count(a) && is_run(b)) return repeated(b, a.integer);
    if (op == Binary::modulo && a.is(Value::Kind::string))
        return formatted(a.marked(), b.is_tuple() ? b.items() : std::vector<Value>{b});
    return arithmetic(op, a, b);
}

Value Run::add(const Value& a, const Value& b) {
    if (a.is(Value::Kind::string) && b.is(Value::Kind::string)) {
        Marked text = a.marked();
        text.add(b.marked());
        return heap.string(std::move(text));
    }
    if (a.is(Value::Kind::list) && b.is(Value::Kind::list)) {
        std::vector<Value> items = a.items();
        items.insert(items.end(), b.items().begin(), b.items().end());
        return heap.list(std::move(items), a.integer);
    }
    return arithmetic(Binary::add, a, b);
}

/// A string or a list n times.
Value Run::repeated(const Value& what, int64_t n) {
    const bool string = what.is(Value::Kind::string);
    const size_t size = string ? what.marked().bytes() : what.items().size() * sizeof(Value);
    const size_t count = size == 0 || n < 0 ? 0 : static_cast<size_t>(n);
    if (count > 0 && count > heap.max_bytes / size) return wrong("a value of more than ", heap.max_bytes >> 20, " MiB");
    if (!step(count)) return Value();
    Marked text;
    std::vector<Value> items;
    for (size_t i = 0; i < count; ++i) {
        if (string)
            text.add(what.marked());
        else
            items.insert(items.end(), what.items().begin(), what.items().end());
    }
    return string ? heap.string(std::move(text)) : heap.list(std::move(items), what.integer);
}

Value Run::arithmetic(Binary op, const Value& a, const Value& b) {
    if (failed()) return Value();
    if (!a.is_number() || !b.is_number())
        return wrong(a.kind_name(), " and ", b.kind_name(), ", expected two numbers",
                     op == Binary::add ? ", strings or lists" : "");
    if (op != Binary::divide && !a.is(Value::Kind::real) && !b.is(Value::Kind::real) &&
        (op != Binary::power || b.integer >= 0))
        return integers(op, a.integer, b.integer);
    const double x = a.number(), y = b.number();
    if (op == Binary::power) {
        const double power = std::pow(x, y);
        if (!std::isfinite(power)) return wrong("a number that is too large, or none");
        return Heap::real(power);
    }
    if (y == 0 && op != Binary::add && op != Binary::subtract && op != Binary::multiply)
        return wrong("division by zero");
    switch (op) {
        case Binary::add: return Heap::real(x + y);
        case Binary::subtract: return Heap::real(x - y);
        case Binary::multiply: return Heap::real(x * y);
        case Binary::divide: return Heap::real(x / y);
        case Binary::floor_divide: return Heap::real(std::floor(x / y));
        default: return Heap::real(x - y * std::floor(x / y));  // modulo
    }
}

/// Integers as in Python, but of 64 bits.
Value Run::integers(Binary op, int64_t a, int64_t b) {
    constexpr int64_t kMax = int64_t{1} << 62;
    if (op == Binary::power) {
        Value power = Heap::integer(1);
        for (int64_t i = 0; i < b && !failed() && (a > 1 || a < -1 || i < 2 + b % 2); ++i)
            power = integers(Binary::multiply, power.integer, a);
        return power;
    }
    const double exact = op == Binary::multiply ? static_cast<double>(a) * static_cast<double>(b)
                         : op == Binary::add    ? static_cast<double>(a) + static_cast<double>(b)
                                                : static_cast<double>(a) - static_cast<double>(b);
    if (!(std::fabs(exact) < static_cast<double>(kMax))) return wrong("an integer is too large");
    switch (op) {
        case Binary::add: return Heap::integer(a + b);
        case Binary::subtract: return Heap::integer(a - b);
        case Binary::multiply: return Heap::integer(a * b);
        default: break;
    }
    if (b == 0) return wrong("division by zero");
    const int64_t rest = a % b, quotient = a / b;
    const bool down = rest != 0 && (rest < 0) != (b < 0);
    return Heap::integer(op == Binary::modulo ? rest + (down ? b : 0) : quotient - (down ? 1 : 0));
}

bool Run::contains(const Value& whole, const Value& part) {
    if (whole.is(Value::Kind::string)) {
        if (part.is(Value::Kind::string))
            return step_search(whole.text(), part.text()) && whole.text().find(part.text()) != std::string::npos;
        wrong(part.kind_name(), " in a string, expected a string");
        return false;
    }
    if (whole.is_map()) return whole.find(part) != nullptr;
    if (whole.is(Value::Kind::list))
        return std::any_of(whole.items().begin(), whole.items().end(),
                           [&](const Value& v) { return step() && same(v, part); });
    if (!whole.is(Value::Kind::undefined)) wrong("'in' ", whole.kind_name(), ", expected a string, a list or a map");
    return false;
}

bool Run::less(const Value& a, const Value& b) {
    if (a.is_number() && b.is_number())
        return a.is(Value::Kind::real) || b.is(Value::Kind::real) ? a.number() < b.number() : a.integer < b.integer;
    if (a.is(Value::Kind::string) && b.is(Value::Kind::string))
        return step(std::min(a.text().size(), b.text().size()) / 256) && a.text() < b.text();
    if (a.is(Value::Kind::list) && b.is(Value::Kind::list)) {
        const Level level(depth_);
        for (size_t i = 0; step() && i < b.items().size(); ++i) {
            if (i == a.items().size()) return true;
            if (!same(a.items()[i], b.items()[i])) return less(a.items()[i], b.items()[i]);
        }
        return false;
    }
    wrong(a.kind_name(), " and ", b.kind_name(), " have no order");
    return false;
}

bool Run::elements(const Value& v, std::vector<Value>* to) {
    to->clear();
    switch (v.kind) {
        case Value::Kind::undefined: return true;
        case Value::Kind::none:
            if (v.integer == 0) wrong("none cannot be iterated");
            return v.integer != 0;
        case Value::Kind::list: *to = v.items(); return true;
        case Value::Kind::map:
        case Value::Kind::name_space:
            for (size_t i = 0; i < v.items().size() && !heap.full(); ++i) to->push_back(heap.key(v, i));
            return true;
        case Value::Kind::string: {
            const std::vector<size_t> starts = character_starts(v.text());
            for (size_t i = 0; i + 1 < starts.size() && !heap.full(); ++i)
                to->push_back(heap.string(v.marked().cut(starts[i], starts[i + 1])));
            return true;
        }
        default: wrong(v.kind_name(), " cannot be iterated"); return false;
    }
}

}  // namespace jinja
}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
AUSPEX_SMALL_CODE_END
