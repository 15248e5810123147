// The block diagram: the recorded operations in data-flow order, each with its worst verdict.

/** Parts of the model, each with its taps in data-flow order; taps in one list run in parallel. */
const FLOW = [
  ["input", [["tokens"], ["embed"], ["altup_projected"], ["altup_streams"]]],
  ["attention", [["predict_router"], ["predict_coefs"], ["altup_predicted"], ["attn_norm"], ["mixer_in"], ["conv_in", "mixer_gate", "beta_logit", "decay_logit"], ["conv_out"], ["conv_act"], ["step_size"], ["q_latent"], ["q_latent_norm"], ["q", "k", "v", "attn_gate", "kv_latent"], ["kv_latent_norm"], ["q_norm", "k_norm", "v_norm"], ["q_rope", "k_rope"], ["q_scaled", "q_rope_norm", "k_rope_norm"], ["k_cache", "v_cache"], ["q_unit", "k_unit", "beta", "decay"], ["recurrent_state"], ["k_expanded", "v_expanded"], ["attn_scores"], ["attn_weights"], ["attn_latent"],
    ["attn_context"], ["attn_gated"], ["recurrent_out"], ["recurrent_norm", "conv_gated"], ["attn_sub_norm"], ["mixer_out", "attn_out"], ["attn_post_norm"], ["attn_residual"], ["laurel_low"], ["laurel_high"], ["laurel_norm"], ["laurel_out"], ["laurel_residual"]]],
  ["feed-forward", [["ffn_norm", "router_norm", "expert_norm"], ["router_logits"], ["expert_scores"], ["experts", "expert_weights"], ["expert_latent", "expert_in"], ["ffn_gate", "ffn_up", "expert_gate", "expert_up", "shared_gate", "shared_up"], ["ffn_sparse"],
    ["ffn_act", "expert_act", "shared_act"], ["ffn_sub_norm"], ["expert_out", "shared_out", "shared_logit"], ["routed_latent"], ["routed_out", "shared_weight"], ["routed_post_norm", "shared_post_norm"],
    ["ffn_out"], ["ffn_post_norm"], ["ffn_residual"], ["correct_router"], ["correct_coefs"], ["altup_corrected"], ["altup_active"], ["layer_gate", "layer_input"], ["layer_act"], ["layer_out"], ["layer_post_norm"], ["block_out"]]],
  ["output", [["altup_unembedded"], ["altup_mean"], ["final_norm"], ["logits"], ["last_logits"], ["argmax", "probs", "token_logprobs", "top_ids", "top_logprobs"], ["generated"]]],
];

/** Returns the worst row of each tap in a pass. */
function worstByTap(rows, pass) {
  const worst = new Map();
  for (const row of rows.filter((row) => isInPass(row, pass))) {
    const known = worst.get(row.tap);
    worst.set(row.tap, known ? worse(known, row) : row);
  }
  return worst;
}

/** Draws the diagram; `choose` is called with the worst row of a clicked operation. */
function blockDiagram(rows, pass, first, chosen, choose) {
  const worst = worstByTap(rows, pass);
  const operation = (tap) => {
    const row = worst.get(tap);
    const isFirst = first?.tap === tap && isInPass(first, pass);
    const label = `${tap}${isFirst ? ", first wrong" : ""}, worst site ${siteLabel(row)}`;
    return element("button", {
      type: "button", class: isFirst ? "first" : null, colour: colourOf(row), title: label, "aria-label": label,
      "aria-current": chosen?.tap === tap ? "true" : null, tabindex: -1,
      onclick: () => choose(isFirst ? first : row),
    }, `${signOf(row)} ${tap}`.trim(), isFirst ? element("small", {}, "first wrong") : "");
  };
  const step = (taps) => element("div", { class: "step" }, taps.map(operation));
  const lane = ([name, steps]) => {
    const recorded = steps.map((taps) => taps.filter((tap) => worst.has(tap))).filter((taps) => taps.length);
    return recorded.length ? element("div", { class: "lane" }, element("span", { class: "faint" }, name), recorded.map(step)) : "";
  };
  const flow = element("div", { class: "flow", role: "group", "aria-label": "operations in data-flow order", onkeydown: moveAlong }, FLOW.map(lane));
  setTabStop(flow);
  return flow;
}

/** Moves the focus to the next or previous operation with the arrow keys. */
function moveAlong(event) {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const operations = [...event.currentTarget.querySelectorAll("button")];
  operations[operations.indexOf(event.target) + step]?.focus();
}
