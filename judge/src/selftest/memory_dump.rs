//! Dumps in memory: a tap that stores values in the form in which an engine would write them.

use half::{bf16, f16};

use crate::checkpoint::{Point, Site, ValueKind};
use crate::dump::{Dump, Manifest, Pass, TensorRow};
use crate::engine::Transcript;
use crate::error::Result;
use crate::format::{FileBytes, TensorFile};
use crate::tap::Tap;
use crate::tensor::Tensor;
use crate::weight::{DType, StoredTensor};

/// The taps that a dump records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordedTaps {
    /// All taps.
    #[default]
    Full,
    /// All taps except attention scores, attention weights and caches.
    NoScores,
    /// Inputs and outputs of layers, and logits.
    Blocks,
    /// Only logits.
    Logits,
}

impl RecordedTaps {
    /// Returns its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            RecordedTaps::Full => "all taps",
            RecordedTaps::NoScores => "no scores or caches",
            RecordedTaps::Blocks => "layers and logits",
            RecordedTaps::Logits => "logits",
        }
    }

    /// Returns true if a fault injected at one site is found where it should first be visible: at that site, or with
    /// fewer taps in the same layer and pass, or in the same pass.
    pub(crate) fn shows(self, made: Site, found: Site) -> bool {
        let is_same_layer = made.layer == found.layer || found.point == Point::Logits;
        match self {
            RecordedTaps::Full => made == found,
            RecordedTaps::NoScores if self.keeps(made.point) => made == found,
            RecordedTaps::NoScores | RecordedTaps::Blocks => is_same_layer && made.pass == found.pass,
            RecordedTaps::Logits => made.pass == found.pass,
        }
    }

    fn keeps(self, point: Point) -> bool {
        use Point::*;
        match self {
            RecordedTaps::Full => true,
            RecordedTaps::NoScores => !matches!(point, AttnScores | AttnWeights | KCache | VCache),
            RecordedTaps::Blocks => {
                matches!(point, Embed | BlockOut | Logits | LastLogits | Argmax | Generated)
            }
            RecordedTaps::Logits => matches!(point, Logits | LastLogits | Argmax | Generated),
        }
    }
}

/// The taps that a dump records, and their stored type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DumpForm {
    /// Recorded taps.
    pub thinned: RecordedTaps,
    /// Stored type of activations: f32, f16 or bf16.
    pub stored: DType,
}

impl DumpForm {
    /// All taps, stored as computed.
    pub const FULL: Self = Self { thinned: RecordedTaps::Full, stored: DType::F32 };
}

/// A tap that stores values and makes a dump of them.
pub(crate) struct MemoryDump {
    manifest: Manifest,
    form: DumpForm,
    arrays: Vec<(String, StoredTensor)>,
}

impl MemoryDump {
    /// Starts a dump with this form.
    pub(crate) fn new(manifest: Manifest, form: DumpForm) -> Self {
        Self { manifest, form, arrays: Vec::new() }
    }

    /// Finishes the dump after the run.
    ///
    /// # Errors
    /// If the values violate the dump format.
    pub(crate) fn finish(mut self, transcript: Transcript) -> Result<Dump> {
        for tokens in transcript.passes {
            let position = self.manifest.passes.last().map_or(0, Pass::end);
            self.manifest.passes.push(Pass { position, tokens, temperature: None });
        }
        self.manifest.generated = Some(transcript.generated);
        let source = FileBytes { path: "memory".into(), data: Vec::new().into() };
        Dump::of_arrays(&source.path, self.manifest, TensorFile::joined(&source, self.arrays)?)
    }

    /// Returns the stored type of a tap. Probabilities are always f32.
    fn dtype(&self, point: Point) -> DType {
        match point.kind() {
            ValueKind::Token => DType::U32,
            ValueKind::Real if point == Point::Probs => DType::F32,
            ValueKind::Real => self.form.stored,
        }
    }
}

impl Tap for MemoryDump {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        if self.wants(site) {
            let key = self.arrays.len().to_string();
            let (dtype, shape) = (self.dtype(site.point), value.shape().to_vec());
            self.manifest.tensors.push(TensorRow::new(site, dtype, &shape, &format!("{key}.npy")));
            let data = stored(value.data(), dtype).into();
            self.arrays.push((key, StoredTensor { dtype, shape, data }));
        }
        value
    }

    fn wants(&self, site: Site) -> bool {
        self.form.thinned.keeps(site.point)
    }
}

/// Encodes values in a type.
fn stored(values: &[f32], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::U32 => values.iter().flat_map(|&id| (id as u32).to_le_bytes()).collect(),
        DType::F16 => values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect(),
        DType::BF16 => values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    }
}
