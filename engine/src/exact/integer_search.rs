//! Finding how an engine rounds activations to 8-bit integers, from its products.

use crate::exact::compared::Compared;
use crate::exact::float::Float;
use crate::exact::linear::Linear;
use crate::exact::measured::Measured;
use crate::exact::profile::{Choices, Profile, RowScales};
use crate::exact::stage::node_of;
use crate::quant::{ActivationCodes, CodeGroup, ScaleType};

/// The products of 8-bit integer activations in an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IntegerProducts {
    /// The integers.
    pub codes: ActivationCodes,
    /// The way in which products meet the scales of the weights' rows.
    pub row_scales: RowScales,
}

/// Values that most candidates are ruled out by, and those that the others are tried on.
const FEW: usize = 48;
const MANY: usize = 2048;

impl IntegerProducts {
    /// Returns every way that is looked for, for an engine whose results are of that type.
    pub fn all(results: Float) -> Vec<Self> {
        let groups = [32, 64, 128, 256, 16]
            .map(CodeGroup::Values)
            .into_iter()
            .chain([CodeGroup::Token, CodeGroup::Pass]);
        let ends = [(127.0, false), (127.5, false), (128.0, false), (127.0, true)];
        let scales = [ScaleType::F32, ScaleType::F16, ScaleType::Bf16];
        let row_scales: &[RowScales] = match results {
            Float::F32 => &[RowScales::Decoded],
            _ => &[RowScales::Decoded, RowScales::Exact, RowScales::Rounded],
        };
        let of = |group| {
            scales.into_iter().flat_map(move |scale| {
                ends.into_iter().flat_map(move |(largest, asymmetric)| {
                    let codes = ActivationCodes { group, scale, largest, asymmetric, whole_for: 0 };
                    row_scales.iter().map(move |&row_scales| Self { codes, row_scales })
                })
            })
        };
        groups.flat_map(of).collect()
    }

    /// The profile of an engine that multiplies so.
    pub fn profile(self, profile: Profile) -> Profile {
        Profile { activation_codes: Some(self.codes), row_scales: self.row_scales, ..profile }
    }
}

/// Returns the candidates of `among` for which rounding explains the dump's values of a linear layer with plain weights. `None` if
/// another operation computed the values.
pub fn products_that_explain(compared: &Compared, among: &[IntegerProducts]) -> Option<Vec<IntegerProducts>> {
    let [origin] = compared.traced.origins() else { return None };
    let node = node_of(origin).filter(|node| node.operation::<Linear>().is_some())?;
    let mut wanted = compared.wanted(0..compared.sides[0].rows(), false);
    wanted.truncate(MANY);
    let explains = |products: &&IntegerProducts, values: &[usize]| {
        let mut measured = Measured::new(compared, Choices::default(), false, None);
        measured.add(values, &node.stage.at(&products.profile(node.profile), values));
        measured.sides[0].over == 0
    };
    let width = node.operation::<Linear>()?.w.cols;
    // Groups of a whole row are those of a token.
    let divides = |group: CodeGroup| !matches!(group, CodeGroup::Values(len) if len >= width);
    let few = &wanted[..wanted.len().min(FEW)];
    let fitting = among
        .iter()
        .filter(|products| divides(products.codes.group))
        .filter(|products| explains(products, few) && explains(products, &wanted));
    Some(fitting.copied().collect())
}
