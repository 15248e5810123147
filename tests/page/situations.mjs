// The situations that a report has to make clear, each a real run: engines that nobody of this project wrote; and what such
// a run cannot easily be made to come to, put into the report of one.

import { existsSync } from "node:fs";

/** SmolLM2 and the dumps of llama.cpp's builds, which reference-scripts/check/make_real_dumps.py makes. */
const model = process.env.SMOLLM2_MODEL ?? "";
const dump = process.env.SMOLLM2_AVX512_DUMP ?? "";

export function situations() {
  return [
    {
      name: "pass",
      command: ["run", "--model", "tiny-llama2", "--checkpoint", "all"],
      status: 0,
      answers: ["PASS", "rounding explains every difference", "transformers-f32", "5 passes, all right"],
    },
    {
      name: "another-build",
      command: ["run", "--model", model, "--reference", dump],
      status: 0,
      answers: ["PASS", "rounding explains every difference", "the accumulated error exceeds the tolerance"],
      lacking: existsSync(model) && existsSync(dump) ? null : "set SMOLLM2_MODEL and SMOLLM2_AVX512_DUMP",
    },
    {
      name: "rope",
      command: ["check", "--model", "tiny-llama3", "--candidate", "tests/data/engines/tiny-llama3/mlx-lm-f32.safetensors"],
      status: 1,
      answers: ["FAIL", "q_rope, layer 0, pass 0", "rope", "candidate (mlx-lm)", "every value of the reference is within its error bound", "error bound", "Each cell is the largest of all head_dim indices"],
    },
    {
      name: "drift",
      command: ["check", "--model", "tiny-gemma3", "--candidate", "tests/data/logprobs/tiny-gemma3-window.safetensors"],
      status: 1,
      answers: ["FAIL", "token_logprobs", "Drift begins at position 5", "sliding_window"],
    },
    ...altered(),
    {
      name: "error",
      command: ["run", "--model", "nothing-here.gguf"],
      status: 2,
      answers: ["ERROR", "nothing-here.gguf"],
      isError: true,
    },
  ];
}

const passes = ["run", "--model", "tiny-llama2", "--checkpoint", "all"];
const rope = ["check", "--model", "tiny-llama3", "--candidate", "tests/data/engines/tiny-llama3/mlx-lm-f32.safetensors"];
const drifts = ["check", "--model", "tiny-gemma3", "--candidate", "tests/data/logprobs/tiny-gemma3-window.safetensors"];
const known = { reason: "the kernel is old", link: "https://example.org/1", expires: "2099-01-01" };

/** Reports of real runs in which `alter` puts what is looked at. */
function altered() {
  return [
    {
      name: "known",
      command: passes,
      status: 0,
      answers: ["PASS", "rounding explains every difference except 1 known failure; 1 choice of tokens is a tie", "waived", "another-dump", "k 3.00"],
      alter: (report) => {
        const [reference] = report.references;
        report.references.push({ ...structuredClone(reference), name: "another-dump" });
        Object.assign(reference.results.find((row) => row.tap === "q"), { verdict: "known", known, bound_ratio: 3 });
        Object.assign(reference.checkpoints.find((row) => row.worst), { verdict: "known", bound_ratio: 3 });
        reference.results.find((row) => row.tap === "argmax").verdict = "tie";
      },
    },
    {
      name: "worst-first",
      command: rope,
      status: 1,
      answers: ["mlx-lm-f32 computes with the wrong RoPE base", "1 other reference without a pass", "1 waived, 1 inconclusive"],
      alter: (report) => {
        const [reference] = report.references;
        report.references.unshift({ ...structuredClone(reference), name: "unsure", verdict: "inconclusive", reason: "too little", first_divergence: null });
        Object.assign(reference.results[0], { verdict: "known", known });
        reference.results[1].verdict = "inconclusive";
      },
    },
    {
      name: "one-wrong-pass",
      command: passes,
      status: 0,
      answers: ["× 3 (position 11)", "4 more, all right"],
      alter: (report) => {
        const [reference] = report.references;
        reference.verdict = "fail";
        Object.assign(reference.results.find((row) => row.tap === "q_rope" && row.pass === 3), { verdict: "fail", bound_ratio: 5 });
      },
    },
    {
      name: "200-positions",
      command: rope,
      status: 1,
      answers: ["Each cell is the largest of 9 position indices × 9 head indices × all head_dim indices"],
      alter: (report) => everySpread(report, (spread) => Object.assign(spread, { lengths: [200, 200], cells: [24, 24], largest: "l".repeat(576) })),
    },
    {
      name: "sampled",
      command: rope,
      status: 1,
      answers: ["one value in 64 was counted", "5 NaN or infinite"],
      alter: (report) => everySpread(report, (spread) => Object.assign(spread, { step: 64, nonfinite: 5 })),
    },
    {
      name: "long",
      command: drifts,
      status: 1,
      answers: ["FAIL", "Divergence by position", "Of neighbouring positions, the one with the largest divergence is drawn"],
      alter: (report) => everyAgreement(report, (found) => {
        found.rows = [...Array(200000).keys()];
        for (const name of ["kl", "max_delta"]) found[name] = found.rows.map((row) => (row % 97) * 1e-5);
        delete found.top;
        delete found.over;
      }),
    },
    {
      name: "damaged",
      command: drifts,
      status: 1,
      answers: ["FAIL", "token_logprobs", "The distributions could not be drawn"],
      alter: (report) => everyAgreement(report, (found) => delete found.kl),
    },
    {
      name: "no-numbers",
      command: passes,
      status: 0,
      answers: ["PASS", "Errors by layer"],
      alter: (report) => {
        for (const row of report.references[0].results) {
          if (row.tap === "block_out") row.accumulated_noise_floor = { max_abs: "inf", max_scaled: "inf", rel_l2: row.layer % 2 ? "inf" : "nan" };
          for (const { probability, ...token } of row.accumulated?.tops?.candidate ?? []) row.accumulated.tops.candidate = [{ ...token, probability: "nan" }, { ...token, probability: "nan" }];
        }
      },
    },
  ];
}

function everySpread(report, alter) {
  for (const { results } of report.references) {
    for (const { exact } of results) for (const side of ["candidate", "reference"]) if (exact?.[side].spread) alter(exact[side].spread);
  }
}

function everyAgreement(report, alter) {
  for (const { results } of report.references) for (const { accumulated, local } of results) for (const found of [accumulated, local]) if (found?.agreement) alter(found.agreement);
}
