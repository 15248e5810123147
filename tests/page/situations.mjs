// The situations that a report has to make clear, each a real run: engines that nobody of this project wrote.

import { existsSync } from "node:fs";

/** SmolLM2 and the dumps of llama.cpp's builds, which reference-scripts/make_smollm2_dumps.sh makes. */
const model = process.env.SMOLLM2_MODEL ?? "";
const dump = process.env.SMOLLM2_AVX512_DUMP ?? "";

export function situations() {
  return [
    {
      name: "pass",
      command: ["run", "--model", "tiny-llama2", "--checkpoint", "all"],
      status: 0,
      answers: ["PASS", "rounding explains every difference", "transformers-f32"],
    },
    {
      name: "another-build",
      command: ["run", "--model", model, "--reference", dump],
      status: 0,
      answers: ["PASS", "rounding explains every difference", "the total error grew past the tolerance"],
      lacking: existsSync(model) && existsSync(dump) ? null : "set SMOLLM2_MODEL and SMOLLM2_AVX512_DUMP",
    },
    {
      name: "rope",
      command: ["check", "--model", "tiny-llama3", "--candidate", "tests/data/engines/tiny-llama3/mlx-lm-f32.safetensors"],
      status: 1,
      answers: ["FAIL", "q_rope, layer 0, pass 0", "rope", "Candidate (mlx-lm)", "The reference's values are what the stage comes to"],
    },
    {
      name: "drift",
      command: ["check", "--model", "tiny-gemma3", "--candidate", "tests/data/logprobs/tiny-gemma3-window.safetensors"],
      status: 1,
      answers: ["FAIL", "token_logprobs", "Errors stay from position 5 on", "sliding_window"],
    },
    {
      name: "error",
      command: ["run", "--model", "nothing-here.gguf"],
      status: 2,
      answers: ["ERROR", "nothing-here.gguf"],
      isError: true,
    },
  ];
}
