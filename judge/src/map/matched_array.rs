//! Arrays of a file with the rules that match their names.

use crate::checkpoint::Point;
use crate::format::Arrays;
use crate::map::rule::{FusedForm, MapRule};
use crate::map::{MapContext, NameMap};
use crate::weight::StoredTensor;

/// An array, or an entry of a stacked array, with the rule that matches it.
#[derive(Clone)]
pub(super) struct MatchedArray<'m> {
    pub(super) name: String,
    pub(super) stored: StoredTensor,
    pub(super) rule: &'m MapRule,
    /// The taps of the array: those of the rule, or the one tap of an entry of the residual stream.
    pub(super) taps: Vec<Point>,
    pub(super) form: Option<FusedForm>,
    /// Index of the array in the file.
    pub(super) index: usize,
    pub(super) layer: Option<usize>,
    pub(super) pass: usize,
    /// Reason why the rule cannot read the array.
    pub(super) problem: Option<String>,
}

impl NameMap {
    /// Returns the number of arrays that a rule matches. Shapes and other problems are ignored.
    pub(super) fn matches(&self, arrays: &Arrays, known: &MapContext) -> usize {
        let architecture =
            known.architecture.clone().or_else(|| self.architecture(arrays)).unwrap_or_default();
        let matched = self.matched(arrays, &architecture);
        let mut indices: Vec<usize> = matched.iter().map(|one| one.index).collect();
        indices.sort_unstable();
        indices.dedup();
        indices.len()
    }

    /// Returns each array with the first rule that matches it. If that rule is about a part of the array, the
    /// rules of the other parts are included.
    pub(super) fn matched<'m>(&'m self, arrays: &Arrays, architecture: &str) -> Vec<MatchedArray<'m>> {
        let mut matched = Vec::new();
        for (index, (name, stored)) in arrays.tensors.iter().enumerate() {
            let renamed = self.renamed(name);
            let mut rules =
                self.rules.iter().filter_map(|rule| Some((rule, rule.of(&renamed.name, architecture)?)));
            let Some((first, numbers)) = rules.next() else { continue };
            let of_parts = rules.filter(|(rule, _)| rule.is_part_as(first));
            matched.extend([(first, numbers)].into_iter().chain(of_parts).map(|(rule, numbers)| {
                MatchedArray {
                    name: name.to_owned(),
                    stored: stored.clone(),
                    rule,
                    taps: rule.taps.clone(),
                    form: rule.form,
                    index,
                    layer: numbers.layer,
                    pass: renamed.pass.or(numbers.pass).unwrap_or(0),
                    problem: None,
                }
            }));
        }
        matched
    }
}
