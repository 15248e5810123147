//! Dumps of correct engines that were computed, split, stored or written in different ways. All of them must pass
//! or be inconclusive.

use crate::dump::Dump;
use crate::engine::{PassInput, RunInput};
use crate::error::Result;
use crate::numerics::{
    FusedKernels, FusedStep, KernelVariant, Numerics, SingleTokenNumerics, SummationOrder, Transformers,
};
use crate::selftest::memory_dump::{DumpForm, RecordedTaps};
use crate::selftest::test_model::TestModel;
use crate::weight::DType;

/// A variant of a correct dump.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CorrectDump {
    /// The dump of our own engine, unchanged.
    Same,
    /// A run with another order of sums: the order for a single token instead of several tokens, or for `f32` the order
    /// of transformers.
    OtherOrder,
    /// Fewer taps are recorded.
    Thinned(RecordedTaps),
    /// Activations are stored in a smaller type than they were computed in.
    Stored(DType),
    /// The prompt is read in several passes.
    Pieces,
    /// The prompt is read in one pass per token.
    OneByOne,
    /// Values from other kernels: their rounding, the recorded taps, and the number of prompt tokens per
    /// pass.
    Kernels(KernelVariant, RecordedTaps, Option<usize>),
    /// Values from kernels of a 16-bit type that round other steps, and the recorded taps.
    Fused(FusedKernels, RecordedTaps),
}

/// All variants with their names in tables.
pub const TWINS: [(&str, CorrectDump); 9] = [
    ("as it is", CorrectDump::Same),
    ("sums in another order", CorrectDump::OtherOrder),
    ("without scores and caches", CorrectDump::Thinned(RecordedTaps::NoScores)),
    ("layers and logits alone", CorrectDump::Thinned(RecordedTaps::Blocks)),
    ("logits alone", CorrectDump::Thinned(RecordedTaps::Logits)),
    ("stored in f16", CorrectDump::Stored(DType::F16)),
    ("stored in bf16", CorrectDump::Stored(DType::BF16)),
    ("the prompt in pieces", CorrectDump::Pieces),
    ("the prompt token by token", CorrectDump::OneByOne),
];

/// Name of [`other_kernels`] in tables.
pub const OTHER_KERNELS: &str = "other kernels";

/// Returns variants with kernels that sum in another order or use approximate functions. Each records all taps,
/// block outputs only, or logits only, with the prompt in one pass or in several. In 16 bits, also returns
/// [`fused_kernels`].
pub fn other_kernels(bed: &TestModel) -> Vec<CorrectDump> {
    let numerics = match bed.arithmetic {
        "f32" => Transformers::F32,
        "bf16" => Transformers::Bf16,
        "f16" => Transformers::F16,
        _ => return Vec::new(),
    };
    let plain = |sum| KernelVariant::new(numerics, sum);
    let functions = [
        KernelVariant { exp2: true, ..plain(SummationOrder::Lanes(8)) },
        KernelVariant { rsqrt: true, ..plain(SummationOrder::Lanes(8)) },
        KernelVariant { flush: true, ..plain(SummationOrder::Lanes(8)) },
        KernelVariant { exp2: true, rsqrt: true, flush: true, ..plain(SummationOrder::Fused) },
    ];
    let tf32 = KernelVariant { tf32: true, ..plain(SummationOrder::Fused) };
    let tf32 = (numerics == Transformers::F32).then_some(tf32);
    let kernels = SummationOrder::ALL.map(plain).into_iter().chain(functions).chain(tf32);
    let pieces = [None, Some(4), Some(1)].into_iter().cycle();
    let forms = [RecordedTaps::Full, RecordedTaps::Blocks, RecordedTaps::Logits];
    kernels
        .zip(pieces)
        .flat_map(|(kernels, piece)| forms.map(|form| CorrectDump::Kernels(kernels, form, piece)))
        .chain(fused_kernels(numerics))
        .collect()
}

/// Steps that kernels of serving engines, of `torch.compile` and of MLX round differently.
const FUSED: [&[FusedStep]; 3] = {
    use FusedStep::*;
    [
        &[Norms, Rotations, Attention, Activations],
        &[Norms, Sums, NormResults, Tables, Rotations, Attention, Activations],
        &[Norms, Gains, Tables, Rotations, Attention, ScaledQueries, ActivationSteps],
    ]
};

/// Returns variants with 16-bit kernels that round other steps: each step alone, and the steps of several engines.
/// Each records block outputs only, or logits only, because these do not show what the next operation reads before
/// rounding.
pub fn fused_kernels(numerics: Transformers) -> Vec<CorrectDump> {
    if numerics == Transformers::F32 {
        return Vec::new();
    }
    let singles = FusedStep::ALL.iter().map(std::slice::from_ref);
    let kernels = singles.chain(FUSED).map(|steps| {
        steps.iter().fold(FusedKernels::new(numerics), |kernels, &step| kernels.with_other(step))
    });
    let forms = [RecordedTaps::Blocks, RecordedTaps::Logits];
    let all = kernels.flat_map(|kernels| forms.map(|form| (kernels, form)));
    let is_shown =
        |(kernels, form): &(FusedKernels, _)| !kernels.reads_unrounded() || *form == RecordedTaps::Logits;
    all.filter(is_shown).map(|(kernels, form)| CorrectDump::Fused(kernels, form)).collect()
}

impl CorrectDump {
    /// Makes the dump of the variant; `None` if the variant does not exist for the arithmetic.
    ///
    /// # Errors
    /// If the model cannot be run.
    pub fn dump(self, bed: &TestModel) -> Result<Option<Dump>> {
        let in_16_bits = bed.engine.activation_type() != DType::F32;
        let one_order = SingleTokenNumerics(&*bed.engine);
        let (mut form, mut script) = (DumpForm::FULL, bed.script());
        let mut numerics: &dyn Numerics = &*bed.engine;
        match (self, bed.arithmetic) {
            // With ternary weights, one token is computed differently from several tokens, so another order
            // would be another arithmetic.
            (CorrectDump::OtherOrder, _) if bed.model.architecture() == "bitnet" => return Ok(None),
            (CorrectDump::OtherOrder, "f32") => numerics = &Transformers::F32,
            (CorrectDump::OtherOrder, "llama.cpp") => numerics = &one_order,
            // The test model's engine has another order already, or rounds its sums to 16 bits.
            (CorrectDump::OtherOrder, _) => return Ok(None),
            _ => {}
        }
        match self {
            CorrectDump::Stored(_) if in_16_bits => return Ok(None),
            CorrectDump::Same | CorrectDump::OtherOrder => {}
            CorrectDump::Thinned(thinned) => form.thinned = thinned,
            CorrectDump::Stored(stored) => form.stored = stored,
            CorrectDump::Pieces => script = cut(&script, &[5, 1]),
            CorrectDump::OneByOne => script = cut(&script, &vec![1; script.prompt_len - 1]),
            CorrectDump::Fused(kernels, thinned) => {
                // Values that the next operation reads before rounding are stored rounded.
                let form = DumpForm { thinned, stored: kernels.activation_type() };
                return bed.recorded(&kernels, &mut (), form, &script).map(Some);
            }
            CorrectDump::Kernels(kernels, thinned, piece) => {
                form.thinned = thinned;
                if let Some(piece) = piece {
                    script = cut(&script, &vec![piece; (script.prompt_len - 1) / piece]);
                }
                let mut dump = bed.recorded(&kernels, &mut (), form, &script)?;
                if kernels.tf32 {
                    dump.manifest.producer.settings.insert("dtype".to_owned(), "tf32".into());
                }
                return Ok(Some(dump));
            }
        }
        bed.recorded(numerics, &mut (), form, &script).map(Some)
    }
}

/// Splits the prompt of a script into passes of these sizes, and a last pass with the rest.
fn cut(script: &RunInput, sizes: &[usize]) -> RunInput {
    let mut prompt = script.passes[0].tokens.clone().expect("the first pass of a script has the prompt");
    let mut passes = Vec::new();
    for &size in sizes {
        let rest = prompt.split_off(size);
        passes.push(PassInput::given(&prompt));
        prompt = rest;
    }
    passes.push(PassInput::given(&prompt));
    passes.extend(script.passes[1..].iter().cloned());
    RunInput { passes, prompt_len: script.prompt_len }
}
