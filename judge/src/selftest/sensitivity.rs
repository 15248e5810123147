//! Sensitivity of the judge: the largest fault of each kind that still passes, and its effect on the
//! predictions.
//!
//! A fault smaller than rounding may pass. A fault must not pass if it changes a token that rounding would not
//! change, or if it changes the predictions more than twice as much as rounding does.

use crate::catalogue::Supposition;
use crate::change::ModelOperations;
use crate::checkpoint::{Point, Site};
use crate::dump::Dump;
use crate::error::{Error, Result};
use crate::measure::{ColumnSelection, Distribution, ValuePrecision, larger};
use crate::noise::PerturbedErrors;
use crate::numerics::moved;
use crate::parallel;
use crate::selftest::memory_dump::{DumpForm, RecordedTaps};
use crate::selftest::test_model::TestModel;
use crate::tap::Tap;
use crate::tensor::Tensor;
use crate::verdict::{Outcome, Verdict};

/// A fault of adjustable size: a constant or a value is multiplied by a wrong factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Wrong scale of attention scores.
    AttentionScale,
    /// A fault that scales attention scores wrongly, in decode passes only.
    DecodeOnly,
    /// Wrong base of RoPE.
    RopeTheta,
    /// Wrong epsilon of the norms.
    NormEps,
    /// Wrong scale of the attention values (v).
    Values,
    /// Wrong scale of the logits.
    LogitScale,
    /// Last columns of a product in the feed-forward block set to zero. The size of the fault is the fraction
    /// of dropped columns.
    DroppedColumns,
}

impl Fault {
    /// All kinds of faults.
    pub(crate) const ALL: [Self; 7] = [
        Self::AttentionScale,
        Self::DecodeOnly,
        Self::RopeTheta,
        Self::NormEps,
        Self::Values,
        Self::LogitScale,
        Self::DroppedColumns,
    ];

    /// Returns the name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::AttentionScale => "attention scale",
            Self::DecodeOnly => "attention scale, decode only",
            Self::RopeTheta => "RoPE base",
            Self::NormEps => "norm epsilon",
            Self::Values => "values",
            Self::LogitScale => "logit scale",
            Self::DroppedColumns => "dropped columns",
        }
    }

    /// Makes the dump of an engine with the fault; `None` if the model has no such constant.
    fn dump(self, bed: &TestModel, size: f64, form: DumpForm) -> Result<Option<Dump>> {
        let operations = ModelOperations::of(&*bed.model, &*bed.engine)?;
        let constant = match self {
            Self::RopeTheta => operations.rope(0).map(|rope| ("rope_theta", f64::from(rope.theta))),
            Self::NormEps => {
                operations.norm(Point::AttnNorm, Some(0)).map(|norm| ("norm_eps", f64::from(norm.eps)))
            }
            _ => {
                let mut scaled = FaultFactor { fault: self, factor: size };
                return bed.recorded(&*bed.engine, &mut scaled, form, &bed.script()).map(Some);
            }
        };
        let Some((key, own)) = constant else { return Ok(None) };
        let supposed = Supposition::named(&format!("{key}={}", own * (1.0 + size))).map_err(Error::Usage)?;
        bed.dump(&[supposed], form).map(|(dump, _)| Some(dump))
    }
}

/// A tap that injects a fault as a factor.
struct FaultFactor {
    fault: Fault,
    factor: f64,
}

impl Tap for FaultFactor {
    fn tap(&mut self, site: Site, value: Tensor) -> Tensor {
        let is_decode = site.pass.is_some_and(|pass| pass > 0);
        let is_there = match (self.fault, site.point) {
            (Fault::AttentionScale, Point::AttnScores) | (Fault::Values, Point::V) => true,
            (Fault::DecodeOnly, Point::AttnScores) => is_decode,
            (Fault::LogitScale, Point::Logits | Point::LastLogits) => true,
            (Fault::DroppedColumns, Point::FfnAct) => return dropped(value, self.factor),
            _ => false,
        };
        if !is_there {
            return value;
        }
        let factor = (1.0 + self.factor) as f32;
        Tensor::new(value.shape(), value.data().iter().map(|x| x * factor).collect())
    }
}

/// Sets the last columns to zero. `part` is their share, rounded down to whole columns.
fn dropped(value: Tensor, part: f64) -> Tensor {
    let width = value.row_len();
    let kept = width - (part * width as f64) as usize;
    let shape = value.shape().to_vec();
    let data = value
        .into_data()
        .chunks(width)
        .flat_map(|row| [&row[..kept], &vec![0.0; width - kept]].concat())
        .collect();
    Tensor::new(&shape, data)
}

/// The largest fault of one kind that passes, for one arithmetic and one form of dump.
#[derive(Clone, Debug)]
pub struct Sensitivity {
    /// Kind of fault.
    pub fault: Fault,
    /// Arithmetic stated in the dump.
    pub arithmetic: &'static str,
    /// Name of the dump's form, which states the recorded taps.
    pub recorded: &'static str,
    /// Size of the fault; 0 if no tested size passes.
    pub size: f64,
    /// Largest KL divergence of one row of logits, caused by the fault.
    pub divergence: f64,
    /// Largest KL divergence of one row of logits in perturbed runs.
    pub noise: f64,
    /// Largest logit margin by which a top token falls behind another token, relative to the largest rounding error of
    /// a logit difference.
    pub lost_lead: f64,
    /// True if every value is within its error bound, so that no perturbed runs were needed.
    pub(crate) is_within_bounds: bool,
}

impl Sensitivity {
    /// Returns true if the fault may pass: rounding can change the same tokens, and changes the predictions at least
    /// half as much as the fault does.
    pub fn is_harmless(&self) -> bool {
        // Without noise, nothing was compared.
        let is_small = self.noise > 0.0 && (self.is_within_bounds || self.divergence <= 2.0 * self.noise);
        self.size == 0.0 || self.lost_lead <= 1.0 && is_small
    }
}

/// Forms of dumps with their names in the table.
const FORMS: [(&str, RecordedTaps); 3] = [
    ("all taps", RecordedTaps::Full),
    ("block outputs", RecordedTaps::Blocks),
    ("logits", RecordedTaps::Logits),
];
/// Number of steps: sizes are powers of four from 4⁻¹² to 4⁰.
const STEPS: i32 = 12;
/// First seed of each group of four perturbed runs.
const SEEDS: [u64; 4] = [0, 4, 8, 12];
const LOGITS: DumpForm = DumpForm { thinned: RecordedTaps::Logits, ..DumpForm::FULL };

/// Measures the sensitivity to every kind of fault, for a model that computes as its dump states. With
/// `claims_int8`, the dump falsely states 8-bit integers although its values are computed in `f32`.
///
/// # Errors
/// If the model cannot be run.
pub fn sensitivities(bed: &TestModel, claims_int8: bool) -> Result<Vec<Sensitivity>> {
    let rounding = RoundingNoise::of(bed)?;
    // A false claim only helps if values are judged by perturbed runs, most of all over the longest segment.
    let forms = if claims_int8 { &FORMS[2..] } else { &FORMS };
    let cells: Vec<_> =
        Fault::ALL.iter().flat_map(|&fault| forms.iter().map(move |&form| (fault, form))).collect();
    let found = parallel::map(cells.len(), 100_000_000, |at| {
        let (fault, form) = cells[at];
        sensitivity(bed, claims_int8, &rounding, fault, form)
    });
    found.into_iter().filter_map(Result::transpose).collect()
}

fn sensitivity(
    bed: &TestModel,
    claims_int8: bool,
    rounding: &RoundingNoise,
    fault: Fault,
    (recorded, thinned): (&'static str, RecordedTaps),
) -> Result<Option<Sensitivity>> {
    let form = DumpForm { thinned, ..DumpForm::FULL };
    let judged = |step: i32| -> Result<Option<Outcome>> {
        let Some(mut dump) = fault.dump(bed, size_of(step), form)? else { return Ok(None) };
        if claims_int8 {
            dump.manifest.producer.settings.insert("dtype".to_owned(), "int8".into());
        }
        bed.check_quickly(&dump, !claims_int8).map(Some)
    };
    // Finds the largest step such that it and all smaller steps pass. Steps above a failing step are not
    // tested.
    let (mut good, mut bad) = (-1, STEPS + 1);
    let mut is_within_bounds = false;
    while bad - good > 1 {
        let middle = (good + bad) / 2;
        let Some(outcome) = judged(middle)? else { return Ok(None) };
        if outcome.verdict == Verdict::Pass {
            is_within_bounds = outcome.rows.iter().all(|row| row.floor.is_none());
            good = middle;
        } else {
            bad = middle;
        }
    }
    let mut found = Sensitivity {
        fault,
        arithmetic: if claims_int8 { "int8" } else { bed.arithmetic },
        recorded,
        size: 0.0,
        divergence: 0.0,
        noise: 0.0,
        lost_lead: 0.0,
        is_within_bounds,
    };
    if good >= 0 {
        found.size = size_of(good);
        rounding.compare(bed, fault, &mut found)?;
    }
    Ok(Some(found))
}

fn size_of(step: i32) -> f64 {
    f64::powi(4.0, step - STEPS)
}

/// Logits of the correct engine, and the errors of perturbed runs.
struct RoundingNoise {
    right: Dump,
    noise: PerturbedErrors,
}

impl RoundingNoise {
    fn of(bed: &TestModel) -> Result<Self> {
        let right = bed.recorded(&*bed.engine, &mut (), LOGITS, &bed.script())?;
        let mut noise = PerturbedErrors::default();
        // The largest of a few runs varies by chance, so this uses four times as many runs as the judge.
        for seed in SEEDS {
            moved(
                &*bed.engine,
                seed,
                |noisy| noisy,
                |numerics| -> Result<()> {
                    let run = bed.recorded(numerics, &mut (), LOGITS, &bed.script())?;
                    let (of_run, max_abs) = apart(&run, &right)?;
                    noise.add(&of_run, max_abs);
                    Ok(())
                },
            )?;
        }
        Ok(Self { right, noise })
    }

    /// Measures the effect of the fault, at the size that was found, on the logits.
    fn compare(&self, bed: &TestModel, fault: Fault, found: &mut Sensitivity) -> Result<()> {
        let Some(wrong) = fault.dump(bed, found.size, LOGITS)? else { return Ok(()) };
        let (errors, _) = apart(&wrong, &self.right)?;
        let largest = |of: &Distribution| of.divergences.iter().copied().fold(0.0, larger);
        (found.divergence, found.noise) = (largest(&errors), largest(&self.noise.distribution));
        let lost = errors.lost_lead / (2.0 * self.noise.max_abs);
        found.lost_lead = if errors.lost_lead == 0.0 { 0.0 } else { lost };
        Ok(())
    }
}

/// Returns the error distribution of all logits, and the largest logit margin by which a top token falls behind
/// another token.
fn apart(run: &Dump, right: &Dump) -> Result<(Distribution, f64)> {
    let mut all = PerturbedErrors::default();
    let mut sites: Vec<Site> = right.sites().filter(|site| site.point == Point::Logits).collect();
    sites.sort_by_key(|site| site.flow_order());
    let mut lost_lead = 0.0;
    for site in sites {
        let Some((theirs, own)) = run.view(site)?.zip(right.view(site)?) else { continue };
        let errors = Distribution::of(&theirs, &own, ValuePrecision::F32, |_| ColumnSelection::All, true);
        let pairs = theirs.to_vec().into_iter().zip(own.to_vec());
        let max_abs = pairs.map(|(theirs, own)| (theirs - own).abs()).fold(0.0, larger);
        lost_lead = larger(lost_lead, errors.lost_lead);
        let mut pass = PerturbedErrors::default();
        pass.add(&errors, max_abs);
        all.join(&pass);
    }
    all.distribution.lost_lead = lost_lead;
    Ok((all.distribution, all.max_abs))
}
