#include "oracle.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace test {

using namespace auspex::detail;

namespace {

double half_to_double(uint16_t h) {
    const int exponent = (h >> 10) & 31, mantissa = h & 1023;
    const double sign = (h & 0x8000) != 0 ? -1 : 1;
    return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

/// The nearest number of half precision, ties to even.
double rounded(double x) {
    if (x == 0) return 0;
    int e = 0;
    std::frexp(x, &e);
    const double unit = std::ldexp(1.0, std::max(e - 11, -24));
    return std::nearbyint(x / unit) * unit;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double silu(double x) { return x * sigmoid(x); }

void check(bool good, const char* what) {
    if (good) return;
    std::fprintf(stderr, "oracle: %s\n", what);
    std::abort();
}

}  // namespace

Oracle::Oracle(const std::vector<std::byte>& bytes, const OracleOptions& options) : options_(options) {
    check(Gguf::parse(bytes).get(file_).ok(), "the file cannot be read");
    arch_ = file_.get_string("general.architecture").value();
    n_mtp_ = static_cast<uint32_t>(number("nextn_predict_layers", 0));
    n_layer_ = static_cast<uint32_t>(number("block_count", 0)) - n_mtp_;
    d_ = static_cast<uint32_t>(number("embedding_length", 0));
    eps_ = number("attention.layer_norm_rms_epsilon", 0);
}

double Oracle::number_at(const std::string& key, uint32_t i, double fallback) const {
    const Meta* m = file_.find(arch_ + "." + key);
    if (!m) return fallback;
    double v = 0;
    int64_t n = 0;
    const uint64_t at = m->is_array ? i : 0;
    if (m->get_int(at, &n)) return static_cast<double>(n);
    check(m->get_float(at, &v), "a key is no number");
    return v;
}
double Oracle::number(const std::string& key, double fallback) const { return number_at(key, 0, fallback); }

const std::vector<float>& Oracle::weight(const std::string& name) {
    auto known = weights_.find(name);
    if (known != weights_.end()) return known->second;
    const Tensor* t = file_.tensor(name);
    if (!t) std::fprintf(stderr, "oracle: '%s'\n", name.c_str());
    check(t != nullptr, "a tensor is missing");
    std::vector<float> v(static_cast<size_t>(t->ne[0] * t->ne[1] * t->ne[2]));
    check(t->type == Type::f32 || t->type == Type::f16, "only F32 and F16 are read");
    for (size_t i = 0; i < v.size(); ++i) {
        if (t->type == Type::f32) {
            std::memcpy(&v[i], t->data + 4 * i, 4);
        } else {
            uint16_t h;
            std::memcpy(&h, t->data + 2 * i, 2);
            v[i] = static_cast<float>(half_to_double(h));
        }
    }
    return weights_[name] = std::move(v);
}

Oracle::Row Oracle::times(const std::string& name, const Row& x, size_t skip) {
    const std::vector<float>& w = weight(name);
    const Tensor& t = *file_.tensor(name);
    check(t.ne[0] == x.size(), "widths do not meet");
    Row y(static_cast<size_t>(t.ne[1]));
    const float* at = w.data() + skip * y.size() * x.size();
    for (double& sum : y) {
        double part[4] = {};  // four sums at a time: additions of one would wait for each other
        size_t i = 0;
        for (; i + 4 <= x.size(); i += 4)
            for (size_t k = 0; k < 4; ++k) part[k] += x[i + k] * double{at[i + k]};
        for (; i < x.size(); ++i) part[0] += x[i] * double{at[i]};
        sum = (part[0] + part[1]) + (part[2] + part[3]);
        at += x.size();
    }
    return y;
}

Oracle::Row Oracle::norm(const Row& x, const std::string& name) {
    const std::vector<float>& w = weight(name);
    double squares = 0;
    for (double v : x) squares += v * v;
    Row y(x.size());
    for (size_t i = 0; i < x.size(); ++i)
        y[i] = x[i] / std::sqrt(squares / static_cast<double>(x.size()) + eps_) * double{w[i]};
    return y;
}

Oracle::Rows Oracle::attention(uint32_t il, const Rows& a) {
    const std::string b = "blk." + std::to_string(il) + ".";
    const bool step = arch_ == "step35";
    const size_t hd = static_cast<size_t>(number("attention.key_length", 0));
    const size_t n_head = static_cast<size_t>(number_at("attention.head_count", il, 0)),
                 n_kv = static_cast<size_t>(number_at("attention.head_count_kv", il, 0));
    const bool windowed = step && number_at("attention.sliding_window_pattern", il, 0) != 0;
    const size_t window = windowed ? static_cast<size_t>(number("attention.sliding_window", 0)) : a.size();
    size_t n_rot = static_cast<size_t>(number("rope.dimension_count", 0));
    if (step && !windowed) n_rot /= 2;
    const double base = windowed ? number("rope.freq_base_swa", 0) : number("rope.freq_base", 0);
    const bool factors = step && !windowed && has("rope_freqs.weight");
    const size_t stride = step ? hd : 2 * hd;  // Qwen: each head's query, then its gate

    // One head: norm, then rotation of its first n_rot values.
    auto prepare = [&](const double* from, const char* name, size_t p) {
        Row v(from, from + hd);
        if (has(b + name)) v = norm(v, b + name);
        for (size_t i = 0; i < n_rot / 2; ++i) {
            double angle =
                static_cast<double>(p) * std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(n_rot));
            if (factors) angle /= double{weight("rope_freqs.weight")[i]};
            const double x = v[i], y = v[i + n_rot / 2];
            v[i] = x * std::cos(angle) - y * std::sin(angle);
            v[i + n_rot / 2] = x * std::sin(angle) + y * std::cos(angle);
        }
        return v;
    };
    auto kept = [&](double v) { return options_.round_kv ? rounded(v) : v; };
    std::vector<Rows> keys(a.size(), Rows(n_kv)), values(a.size(), Rows(n_kv));
    Rows out;
    for (size_t p = 0; p < a.size(); ++p) {
        Row q = times(b + "attn_q.weight", a[p]);
        const Row k = times(b + "attn_k.weight", a[p]), v = times(b + "attn_v.weight", a[p]);
        for (size_t g = 0; g < n_kv; ++g) {
            keys[p][g] = prepare(&k[g * hd], "attn_k_norm.weight", p);
            values[p][g].assign(&v[g * hd], &v[g * hd] + hd);
            for (double& x : keys[p][g]) x = kept(x);
            for (double& x : values[p][g]) x = kept(x);
        }
        Row gates;
        if (step && has(b + "attn_gate.weight")) gates = times(b + "attn_gate.weight", a[p]);
        Row o(n_head * hd);
        for (size_t h = 0; h < n_head; ++h) {
            const Row query = prepare(&q[h * stride], "attn_q_norm.weight", p);
            const size_t g = h / (n_head / n_kv), first = p + 1 > window ? p + 1 - window : 0;
            Row score;
            double max = -1e300, sum = 0;
            for (size_t i = first; i <= p; ++i) {
                double s = 0;
                for (size_t j = 0; j < hd; ++j) s += query[j] * keys[i][g][j];
                score.push_back(s / std::sqrt(static_cast<double>(hd)));
                max = std::max(max, score.back());
            }
            for (double& s : score) sum += s = std::exp(s - max);
            for (size_t j = 0; j < hd; ++j) {
                double v_sum = 0;
                for (size_t i = first; i <= p; ++i) v_sum += score[i - first] / sum * values[i][g][j];
                const double gate = !step ? sigmoid(q[h * stride + hd + j]) : gates.empty() ? 1 : sigmoid(gates[h]);
                o[h * hd + j] = v_sum * gate;
            }
        }
        out.push_back(times(b + "attn_output.weight", o));
    }
    return out;
}

Oracle::Rows Oracle::delta(uint32_t il, const Rows& a) {
    const std::string b = "blk." + std::to_string(il) + ".";
    const bool next = arch_ == "qwen3next";
    const size_t nk = static_cast<size_t>(number("ssm.group_count", 0)),
                 nv = static_cast<size_t>(number("ssm.time_step_rank", 0));
    const size_t dk = static_cast<size_t>(number("ssm.state_size", 0)),
                 taps = static_cast<size_t>(number("ssm.conv_kernel", 0)), r = nv / nk;
    const std::vector<float>&conv = weight(b + "ssm_conv1d.weight"), &dt = weight(b + "ssm_dt.bias"),
          &log_decay = weight(b + "ssm_a");
    std::vector<Rows> state(nv, Rows(dk, Row(dk)));
    Rows u, out;
    for (size_t t = 0; t < a.size(); ++t) {
        u.push_back(times(b + "attn_qkv.weight", a[t]));
        const Row z = times(b + "attn_gate.weight", a[t]);
        Row beta(nv), alpha(nv);
        if (next) {
            const Row ba = times(b + "ssm_ba.weight", a[t]);
            for (size_t h = 0; h < nv; ++h) {
                beta[h] = ba[h / r * 2 * r + h % r];
                alpha[h] = ba[h / r * 2 * r + r + h % r];
            }
        } else {
            beta = times(b + "ssm_beta.weight", a[t]);
            alpha = times(b + "ssm_alpha.weight", a[t]);
        }
        Row y(u[t].size());
        for (size_t c = 0; c < y.size(); ++c) {
            for (size_t j = 0; j < taps; ++j)
                if (t + j + 1 >= taps) y[c] += double{conv[c * taps + j]} * u[t + j + 1 - taps][c];
            y[c] = silu(y[c]);
        }
        auto unit = [&](size_t from) {
            Row v(y.begin() + static_cast<std::ptrdiff_t>(from), y.begin() + static_cast<std::ptrdiff_t>(from + dk));
            double squares = 0;
            for (double x : v) squares += x * x;
            for (double& x : v) x /= std::sqrt(squares + 1e-6);
            return v;
        };
        Row o;
        for (size_t h = 0; h < nv; ++h) {
            const size_t hk = next ? h / r : h % nk;
            Row q = unit(hk * dk), k = unit((nk + hk) * dk), row(dk);
            for (double& x : q) x /= std::sqrt(static_cast<double>(dk));
            const double x = alpha[h] + double{dt[h]},
                         decay = std::exp(double{log_decay[h]} * (x > 20 ? x : std::log1p(std::exp(x))));
            Rows& s = state[h];
            for (size_t j = 0; j < dk; ++j) {
                double seen = 0;
                for (size_t i = 0; i < dk; ++i) {
                    s[i][j] *= decay;
                    seen += s[i][j] * k[i];
                }
                const double change = sigmoid(beta[h]) * (y[(2 * nk + h) * dk + j] - seen);
                for (size_t i = 0; i < dk; ++i) {
                    s[i][j] += k[i] * change;
                    row[j] += s[i][j] * q[i];
                }
            }
            row = norm(row, b + "ssm_norm.weight");
            for (size_t j = 0; j < dk; ++j) o.push_back(row[j] * silu(z[h * dk + j]));
        }
        out.push_back(times(b + "ssm_out.weight", o));
    }
    return out;
}

Oracle::Row Oracle::gated(const Row& gate, const Row& up, double limit) const {
    Row h(gate.size());
    for (size_t i = 0; i < h.size(); ++i) {
        const double g = silu(gate[i]);
        h[i] = limit > 1e-6 ? std::min(g, limit) * std::min(std::max(up[i], -limit), limit) : g * up[i];
    }
    return h;
}

Oracle::Row Oracle::experts(uint32_t il, const Row& f) {
    const std::string b = "blk." + std::to_string(il) + ".";
    const bool step = arch_ == "step35";
    const size_t n_used = static_cast<size_t>(number("expert_used_count", 0));
    Row p = times(b + "ffn_gate_inp.weight", f);
    if (step) {
        for (double& v : p) v = sigmoid(v);
    } else {
        double sum = 0;
        for (double& v : p) sum += v = std::exp(v);
        for (double& v : p) v /= sum;
    }
    std::vector<size_t> order(p.size());
    for (size_t e = 0; e < order.size(); ++e) order[e] = e;
    auto rank = [&](size_t e) { return p[e] + (step ? double{weight(b + "exp_probs_b.bias")[e]} : 0); };
    std::stable_sort(order.begin(), order.end(), [&](size_t x, size_t y) { return rank(x) > rank(y); });
    double sum = 0;
    for (size_t i = 0; i < n_used; ++i) sum += p[order[i]];
    const double limit = number_at("swiglu_clamp_exp", il, 0), limit_shared = number_at("swiglu_clamp_shexp", il, 0),
                 scale = number("expert_weights_scale", 1);
    double share = 1;
    if (!step) {
        const std::vector<float>& w = weight(b + "ffn_gate_inp_shexp.weight");
        double logit = 0;
        for (size_t i = 0; i < f.size(); ++i) logit += double{w[i]} * f[i];
        share = sigmoid(logit);
    }
    Row out = times(b + "ffn_down_shexp.weight",
                    gated(times(b + "ffn_gate_shexp.weight", f), times(b + "ffn_up_shexp.weight", f), limit_shared));
    for (double& v : out) v *= share;
    for (size_t i = 0; i < n_used; ++i) {
        const size_t e = order[i];
        const Row y =
            times(b + "ffn_down_exps.weight",
                  gated(times(b + "ffn_gate_exps.weight", f, e), times(b + "ffn_up_exps.weight", f, e), limit), e);
        for (size_t j = 0; j < out.size(); ++j) out[j] += p[e] / sum * scale * y[j];
    }
    return out;
}

Oracle::Row Oracle::ffn(uint32_t il, const Row& f) {
    const std::string b = "blk." + std::to_string(il) + ".";
    if (has(b + "ffn_gate_inp.weight")) return experts(il, f);
    return times(b + "ffn_down.weight", gated(times(b + "ffn_gate.weight", f), times(b + "ffn_up.weight", f),
                                              number_at("swiglu_clamp_shexp", il, 0)));
}

void Oracle::block(uint32_t il, Rows& x, bool mtp) {
    const std::string b = "blk." + std::to_string(il) + ".";
    const bool step = arch_ == "step35";
    const uint32_t interval = static_cast<uint32_t>(number("full_attention_interval", 4));
    Rows a;
    for (const Row& row : x) a.push_back(norm(row, b + "attn_norm.weight"));
    a = step || mtp || (il + 1) % interval == 0 ? attention(il, a) : delta(il, a);
    for (size_t p = 0; p < x.size(); ++p) {
        for (size_t i = 0; i < d_; ++i) x[p][i] += a[p][i];
        const Row y = ffn(il, norm(x[p], b + (step ? "ffn_norm.weight" : "post_attention_norm.weight")));
        for (size_t i = 0; i < d_; ++i) x[p][i] += y[i];
    }
}

Oracle::Rows Oracle::logits(const std::vector<auspex::Token>& ids, uint32_t depth) {
    const bool step = arch_ == "step35";
    const std::string head = has("output.weight") ? "output.weight" : "token_embd.weight";
    auto embed = [&](auspex::Token t) {
        const std::vector<float>& w = weight("token_embd.weight");
        const auto from = w.begin() + static_cast<std::ptrdiff_t>(t) * static_cast<std::ptrdiff_t>(d_);
        return Row(from, from + static_cast<std::ptrdiff_t>(d_));
    };
    Rows x, out;
    for (auspex::Token t : ids) x.push_back(embed(t));
    for (uint32_t il = 0; il < n_layer_; ++il) block(il, x, false);
    Rows normed;
    for (const Row& row : x) normed.push_back(norm(row, "output_norm.weight"));
    std::string table = head;
    for (uint32_t d = 1; d <= depth; ++d) {
        const uint32_t il = n_layer_ + std::min(d, n_mtp_) - 1;
        const std::string b = "blk." + std::to_string(il) + ".";
        const Rows given = step ? x : normed;
        x.clear();
        normed.clear();
        for (size_t p = 0; p + d < ids.size(); ++p) {
            Row c = norm(embed(ids[p + d]), b + "nextn.enorm.weight");
            const Row h = norm(given[p], b + "nextn.hnorm.weight");
            c.insert(c.end(), h.begin(), h.end());
            x.push_back(times(b + "nextn.eh_proj.weight", c));
        }
        block(il, x, true);
        for (const Row& row : x)
            normed.push_back(norm(row, has(b + "nextn.shared_head_norm.weight") ? b + "nextn.shared_head_norm.weight"
                                                                                : "output_norm.weight"));
        table = has(b + "nextn.shared_head_head.weight") ? b + "nextn.shared_head_head.weight" : head;
    }
    for (const Row& row : normed) out.push_back(times(table, row));
    return out;
}

}  // namespace test
