//! Writes a name map from the identified arrays.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use crate::checkpoint::{Point, TapAxis};
use crate::dump::ArrayPart;
use crate::identify::sizes::AxisSizes;
use crate::identify::{ArraySite, IdentifiedArray};
use crate::map::{HeadSizes, MapDefinition, NamePattern, Names, RuleDefinition, TokensDefinition, is_plain};
use crate::model::Model;
use crate::tensor::RopePairing;

/// Returns the map that reads the file with the certain sites. Each site gets one array, since a dump records
/// each site once. Best guesses are omitted; [`guesses_of`] returns them.
pub fn map_of(identified: &[IdentifiedArray], tokens: &[u32], model: &dyn Model) -> MapDefinition {
    let without = |array: &IdentifiedArray| IdentifiedArray { places: Vec::new(), ..array.clone() };
    let certain = |array: &IdentifiedArray| if array.is_guess() { without(array) } else { array.clone() };
    map_of_all(&identified.iter().map(certain).collect::<Vec<_>>(), tokens, model)
}

/// Returns rules for best guesses: one for each tap without a certain array. A person must confirm these
/// rules.
pub fn guesses_of(identified: &[IdentifiedArray], tokens: &[u32], model: &dyn Model) -> Vec<RuleDefinition> {
    let is_certain = |place: &ArraySite| {
        let mut certain = identified.iter().filter(|array| !array.is_guess()).flat_map(|array| &array.places);
        certain.any(|other| other.site == place.site)
    };
    let guess = |array: &IdentifiedArray| {
        let mut array = array.clone();
        array.places.retain(|place| !place.is_certain && !is_certain(place));
        array
    };
    let guesses: Vec<IdentifiedArray> = identified.iter().map(guess).collect();
    map_of_all(&guesses, tokens, model).rules
}

fn map_of_all(identified: &[IdentifiedArray], tokens: &[u32], model: &dyn Model) -> MapDefinition {
    let dimensions = model.dimensions();
    let pairing = dimensions.rope_pairing.map(|own| most_paired(identified, own));
    let is_as_most = |place: &ArraySite| {
        let paired = place.pairing.or(dimensions.rope_pairing);
        !place.site.point.follows_rope_pairing() || paired == pairing
    };
    let frame = RuleContext {
        passes: passes(identified, tokens.len()),
        tokens: tokens.len(),
        sizes: HeadSizes::new(dimensions.n_heads, dimensions.kv_heads(), dimensions.head_dim),
        extents: AxisSizes::of(&dimensions),
    };
    let kept = kept(identified, |place| frame.claimed(place).filter(|_| is_as_most(place)));
    let rules = identified.iter().zip(kept).filter(|(_, claims)| !claims.is_empty());
    let rules =
        rules.map(|(array, claims)| (array, claims.iter().map(|claim| frame.rule(array, claim)).collect()));
    let ignore =
        identified.iter().filter(|one| one.is_tokens()).map(|one| NamePattern::literal(&one.name)).collect();
    MapDefinition {
        architecture: Some(model.architecture().to_owned()),
        rope_pairing: pairing,
        tokens: Some(TokensDefinition::Ids(tokens.to_vec())),
        heads: frame.sizes.heads,
        kv_heads: frame.sizes.kv_heads,
        head_dim: frame.sizes.head_dim,
        ignore,
        rules: grouped(identified, &rules.collect::<Vec<_>>()),
        ..MapDefinition::default()
    }
}

/// Returns the RoPE pairing of most arrays.
fn most_paired(identified: &[IdentifiedArray], own: RopePairing) -> RopePairing {
    let places = identified.iter().flat_map(|one| &one.places);
    let (as_ours, otherwise): (Vec<_>, Vec<_>) = places
        .filter(|place| place.site.point.follows_rope_pairing())
        .partition(|place| place.pairing.is_none());
    if otherwise.len() > as_ours.len() { own.other() } else { own }
}

/// Returns the forward passes, derived from the rows of the arrays: start and number of tokens of each.
/// Returns one pass over all tokens unless more arrays belong to shorter passes that together cover all
/// tokens.
fn passes(identified: &[IdentifiedArray], tokens: usize) -> Vec<(usize, usize)> {
    let mut counts: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    let places = identified.iter().flat_map(|one| &one.places);
    for place in places.filter(|place| place.site.point.axes().contains(&TapAxis::Token)) {
        *counts.entry(place.rows.unwrap_or((0, tokens))).or_default() += 1;
    }
    let whole = (0, tokens);
    let (mut passes, mut placed, mut position) = (Vec::new(), 0, 0);
    while position < tokens {
        let next = counts.iter().filter(|(rows, _)| rows.0 == position && **rows != whole);
        let Some((&rows, &count)) = next.max_by_key(|(_, count)| **count) else { return vec![whole] };
        passes.push(rows);
        (placed, position) = (placed + count, rows.0 + rows.1);
    }
    let is_told = placed > counts.get(&whole).copied().unwrap_or(0);
    if is_told { passes } else { vec![whole] }
}

/// A possible site of an array in a dump.
struct SiteClaim<'f> {
    place: &'f ArraySite,
    spot: PassRows,
}

/// A pass of the dump, with the first row and the number of rows if not all are recorded.
#[derive(Clone, Copy)]
struct PassRows {
    pass: usize,
    rows: Option<(usize, usize)>,
}

/// Keeps the best claim per site: most values first, then smallest distance, then whole arrays before parts.
fn kept(
    identified: &[IdentifiedArray],
    spot: impl Fn(&ArraySite) -> Option<PassRows>,
) -> Vec<Vec<SiteClaim<'_>>> {
    let claims = identified.iter().enumerate().flat_map(|(index, array)| {
        let spot = &spot;
        array.places.iter().filter_map(move |place| Some((index, SiteClaim { place, spot: spot(place)? })))
    });
    let mut best: HashMap<(Point, Option<usize>, usize), (usize, SiteClaim)> = HashMap::new();
    let held = |place: &ArraySite| place.axes.iter().map(|(_, length)| length).product::<usize>();
    let is_before = |one: &ArraySite, other: &ArraySite| {
        let order = held(other).cmp(&held(one)).then(one.rel_l2.total_cmp(&other.rel_l2));
        order.then(one.of.is_some().cmp(&other.of.is_some())).is_lt()
    };
    for (index, claim) in claims {
        let key = (claim.place.site.point, claim.place.site.layer, claim.spot.pass);
        if best.get(&key).is_none_or(|(_, known)| is_before(claim.place, known.place)) {
            best.insert(key, (index, claim));
        }
    }
    let mut kept: Vec<Vec<SiteClaim>> = identified.iter().map(|_| Vec::new()).collect();
    best.into_values().for_each(|(index, claim)| kept[index].push(claim));
    for claims in &mut kept {
        claims.sort_by_key(|claim| claim.place.site.flow_order());
    }
    kept
}

/// Facts about the run that all rules of a map need.
struct RuleContext {
    passes: Vec<(usize, usize)>,
    tokens: usize,
    sizes: HeadSizes,
    extents: AxisSizes,
}

impl RuleContext {
    /// Returns the pass and rows of a site found in our single-pass run; `None` if it does not lie within one
    /// pass of the file.
    fn claimed(&self, place: &ArraySite) -> Option<PassRows> {
        let (first, count) = place.rows.unwrap_or((0, self.tokens));
        let end = first + count;
        // A cache contains all positions up to the end of its pass; the last logits belong to that end.
        if !place.site.point.axes().contains(&TapAxis::Token) {
            let pass = self.passes.iter().position(|pass| pass.0 + pass.1 == end)?;
            return Some(PassRows { pass, rows: None });
        }
        let pass = self.passes.iter().position(|pass| pass.0 <= first && end <= pass.0 + pass.1)?;
        let start = self.passes[pass].0;
        Some(PassRows { pass, rows: (self.passes[pass] != (first, count)).then_some((first - start, count)) })
    }

    /// Returns the rule for an array, or for its fused part, with the array's name as the pattern.
    fn rule(&self, array: &IdentifiedArray, claim: &SiteClaim) -> RuleDefinition {
        let SiteClaim { place, spot } = claim;
        let rule = RuleDefinition {
            name: Names::One(NamePattern::literal(&array.name)),
            tap: Some(place.site.point.name().to_owned()),
            layer: place.site.layer,
            pass: (self.passes.len() > 1).then_some(spot.pass),
            rows: spot.rows.map(|(first, count)| (first..first + count).collect()),
            scale: self.extents.is_meant(place.scale).then_some(1.0 / place.scale),
            ..RuleDefinition::default()
        };
        if let Some((of, axes)) = &place.of {
            let axes = Some(TapAxis::names(axes.iter().copied()));
            return RuleDefinition { of: Some(of.clone()), axes, ..rule };
        }
        let read = spot.rows.map_or(self.passes[spot.pass].1, |(_, count)| count);
        with_axes(rule, array, place, read, self.sizes)
    }
}

/// Adds the axes to a rule, if they differ from the default axes of the tap.
fn with_axes(
    rule: RuleDefinition,
    array: &IdentifiedArray,
    place: &ArraySite,
    tokens: usize,
    sizes: HeadSizes,
) -> RuleDefinition {
    let own = place.site.point.axes();
    let lengths: Vec<usize> = place.axes.iter().map(|(_, length)| *length).collect();
    let is_ambiguous = (1..lengths.len()).any(|at| lengths[..at].contains(&lengths[at]));
    if place.is_in_order && !is_ambiguous && is_plain(place.site.point, &array.shape, tokens, sizes) {
        return rule;
    }
    let missing: Vec<TapAxis> = missing(own, &place.axes);
    if let Some(axes) = named(&array.shape, &place.axes).filter(|_| missing.is_empty()) {
        return RuleDefinition { axes: Some(TapAxis::names(axes)), ..rule };
    }
    // The array, reshaped to one dimension per axis; axes of length 1 are last.
    let axes = place.axes.iter().map(|(axis, _)| *axis).chain(missing.iter().copied());
    let shape = lengths.iter().copied().chain(missing.iter().map(|_| 1)).collect();
    RuleDefinition {
        of: Some(ArrayPart { shape, start: None, end: None }),
        axes: Some(TapAxis::names(axes)),
        ..rule
    }
}

/// Returns the tap's axes of length 1 that the array does not have.
fn missing(own: &[TapAxis], axes: &[(TapAxis, usize)]) -> Vec<TapAxis> {
    let has = |wanted: TapAxis| axes.iter().any(|(axis, _)| *axis == wanted);
    let is_split = |axis: TapAxis| axis == TapAxis::Hidden && (has(TapAxis::Head) || has(TapAxis::HeadDim));
    let head = own.iter().any(|&axis| is_split(axis)) && !has(TapAxis::Head);
    own.iter()
        .copied()
        .filter(|&axis| !has(axis) && !is_split(axis))
        .chain(head.then_some(TapAxis::Head))
        .collect()
}

/// Returns the names of the array's axes; `None` if a dimension is neither one axis nor all heads merged.
fn named(shape: &[usize], axes: &[(TapAxis, usize)]) -> Option<Vec<TapAxis>> {
    let (mut left, mut names) = (axes, Vec::new());
    for &length in shape.iter().skip_while(|&&length| length == 1) {
        let (axis, rest) = match left {
            [(axis, one), rest @ ..] if *one == length => (*axis, rest),
            [(TapAxis::Head | TapAxis::KvHead, heads), (TapAxis::HeadDim, one), rest @ ..]
                if heads * one == length =>
            {
                (TapAxis::Hidden, rest)
            }
            _ => return None,
        };
        names.push(axis);
        left = rest;
    }
    left.is_empty().then_some(names)
}

/// An array with its rules: one rule, or one per fused tap.
type ArrayRules<'f> = (&'f IdentifiedArray, Vec<RuleDefinition>);

/// Merges rules that differ only in the layer, if the array name contains the layer number.
fn grouped(identified: &[IdentifiedArray], ruled: &[ArrayRules]) -> Vec<RuleDefinition> {
    let mut groups: BTreeMap<(String, String), (Vec<RuleDefinition>, Vec<usize>)> = BTreeMap::new();
    let mut single = Vec::new();
    for (index, (array, rules)) in ruled.iter().enumerate() {
        match generalised(&array.name, rules) {
            Some(general) => {
                let key = (format!("{:?}", general[0].name), format!("{general:?}"));
                groups.entry(key).or_insert((general, Vec::new())).1.push(index);
            }
            None => single.push(index),
        }
    }
    let mut grouped = Vec::new();
    for (general, members) in groups.into_values() {
        let names: Vec<&str> = members.iter().map(|&index| ruled[index].0.name.as_str()).collect();
        match is_of_these_alone(&general[0].name, identified, &names) {
            true => grouped.extend(general),
            false => single.extend(members),
        }
    }
    single.sort_unstable();
    grouped.extend(single.into_iter().flat_map(|index| ruled[index].1.clone()));
    grouped
}

/// Replaces the layer number in the name by `{layer}`; `None` if the name does not contain it.
fn generalised(name: &str, rules: &[RuleDefinition]) -> Option<Vec<RuleDefinition>> {
    let layer = rules.first()?.layer.filter(|layer| rules.iter().all(|rule| rule.layer == Some(*layer)))?;
    let numbers = numbers_in(name);
    let (range, number) = match numbers.as_slice() {
        [only] => only,
        several => several.iter().find(|(_, number)| *number == layer)?,
    };
    let offset = isize::try_from(layer).ok()?.checked_sub(isize::try_from(*number).ok()?)?;
    let (before, behind) =
        (NamePattern::literal(&name[..range.start]), NamePattern::literal(&name[range.end..]));
    let pattern = format!("{before}{{layer}}{behind}");
    let general = |rule: &RuleDefinition| RuleDefinition {
        name: Names::One(pattern.clone()),
        layer: None,
        offset: (offset != 0).then_some(offset),
        ..rule.clone()
    };
    Some(rules.iter().map(general).collect())
}

/// Returns the numbers in a name with their positions.
fn numbers_in(name: &str) -> Vec<(Range<usize>, usize)> {
    let mut numbers = Vec::new();
    let mut at = 0;
    for run in name.split_inclusive(|one: char| !one.is_ascii_digit()) {
        let digits = run.trim_end_matches(|one: char| !one.is_ascii_digit());
        if let Ok(number) = digits.parse() {
            numbers.push((at..at + digits.len(), number));
        }
        at += run.len();
    }
    numbers
}

/// Returns true if the pattern matches several of the given names, and no other array.
fn is_of_these_alone(pattern: &Names, identified: &[IdentifiedArray], names: &[&str]) -> bool {
    let Names::One(written) = pattern else { return false };
    let Ok(pattern) = NamePattern::new(written) else { return false };
    names.len() > 1
        && identified.iter().all(|one| pattern.of(&one.name).is_none() || names.contains(&one.name.as_str()))
}
