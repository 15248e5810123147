//! A map of what was found.

use std::collections::BTreeMap;

use crate::checkpoint::{Axis, Site};
use crate::dump::Of;
use crate::identify::{Finding, Place};
use crate::map::{Names, Pattern, Sizes, Written, WrittenRule, WrittenTokens, is_plain};
use crate::model::Model;
use crate::tensor::RopePairing;

/// The map by which a file is read as the dump that it was found to be.
pub fn map_of(findings: &[Finding], tokens: &[u32], model: &dyn Model) -> Written {
    let dimensions = model.dimensions();
    let others =
        findings.iter().flat_map(|one| &one.places).filter(|place| place.site.point.follows_rope_pairing());
    let (as_ours, otherwise): (Vec<_>, Vec<_>) = others.partition(|place| place.pairing.is_none());
    let pairing = |own: RopePairing| if otherwise.len() > as_ours.len() { own.other() } else { own };
    let passes = passes(findings, tokens.len());
    // Where two arrays are told as one place and are not of the same bits, the nearer one has it.
    let nearest = |place: &Place| {
        let rivals = findings
            .iter()
            .flat_map(|one| &one.places)
            .filter(|one| one.site == place.site && one.rows == place.rows);
        rivals.map(|one| one.rel_l2).fold(f64::INFINITY, f64::min)
    };
    let has_it = |one: &&Finding| one.places.first().is_some_and(|place| place.rel_l2 <= nearest(place));
    let told = findings.iter().filter(has_it);
    let sizes = Sizes {
        heads: Some(dimensions.n_heads),
        kv_heads: dimensions.kv_width.checked_div(dimensions.head_dim),
        head_dim: Some(dimensions.head_dim),
    };
    let rules: Vec<(&Finding, WrittenRule)> =
        told.map(|one| (one, rule(one, &passes, tokens.len(), sizes))).collect();
    let ignore =
        findings.iter().filter(|one| one.is_tokens()).map(|one| Pattern::literal(&one.name)).collect();
    Written {
        architecture: Some(model.architecture().to_owned()),
        rope_pairing: dimensions.rope_pairing.map(pairing),
        tokens: Some(WrittenTokens::Ids(tokens.to_vec())),
        heads: sizes.heads,
        kv_heads: sizes.kv_heads,
        head_dim: sizes.head_dim,
        ignore,
        rules: grouped(findings, rules),
        ..Written::default()
    }
}

/// The passes that rows tell: where each begins and how many tokens it reads, if they make up the whole.
fn passes(findings: &[Finding], tokens: usize) -> Vec<(usize, usize)> {
    let places = findings.iter().flat_map(|one| &one.places);
    let of_tokens = places.filter(|place| place.site.point.axes().contains(&Axis::Token));
    let mut found: Vec<(usize, usize)> = of_tokens.map(|place| place.rows.unwrap_or((0, tokens))).collect();
    found.sort_unstable();
    found.dedup();
    let is_next = |two: &[(usize, usize)]| two[0].0 + two[0].1 == two[1].0;
    let is_whole = found.first().is_some_and(|first| first.0 == 0)
        && found.last().is_some_and(|last| last.0 + last.1 == tokens)
        && found.windows(2).all(is_next);
    if is_whole { found } else { vec![(0, tokens)] }
}

/// The rule of one array by its name.
fn rule(finding: &Finding, passes: &[(usize, usize)], tokens: usize, sizes: Sizes) -> WrittenRule {
    let first = &finding.places[0];
    let name = Names::One(Pattern::literal(&finding.name));
    let pass = first.rows.and_then(|rows| passes.iter().position(|pass| *pass == rows));
    let rows = first.rows.filter(|_| pass.is_none() && first.site.point.axes().contains(&Axis::Token));
    let scale = (first.scale != 1.0).then_some(1.0 / first.scale);
    let rule = WrittenRule {
        name,
        tap: Some(first.site.point.name().to_owned()),
        layer: first.site.layer,
        pass: pass.filter(|_| passes.len() > 1),
        rows: rows.map(|(from, count)| (from..from + count).collect()),
        scale,
        ..WrittenRule::default()
    };
    if let Some((of, axes)) = &first.of {
        let axes = Some(axes.iter().map(|axis| axis.name().to_owned()).collect());
        return WrittenRule { of: Some(of.clone()), axes, ..rule };
    }
    let read = first.rows.filter(|_| pass.is_some()).map_or(tokens, |(_, count)| count);
    with_axes(rule, finding, read, sizes)
}

/// The axes, where they are not plainly the tap's own.
fn with_axes(rule: WrittenRule, finding: &Finding, tokens: usize, sizes: Sizes) -> WrittenRule {
    let place = &finding.places[0];
    let own = place.site.point.axes();
    let lengths: Vec<usize> = place.axes.iter().map(|(_, length)| *length).collect();
    let is_ambiguous = (1..lengths.len()).any(|at| lengths[..at].contains(&lengths[at]));
    if place.is_in_order && !is_ambiguous && is_plain(place.site.point, &finding.shape, tokens, sizes) {
        return rule;
    }
    let names = |axes: &[Axis]| Some(axes.iter().map(|axis| axis.name().to_owned()).collect());
    let missing: Vec<Axis> = missing(own, &place.axes);
    if let Some(axes) = named(&finding.shape, &place.axes).filter(|_| missing.is_empty()) {
        return WrittenRule { axes: names(&axes), ..rule };
    }
    // The array seen as its axes one by one; those of length 1 come last.
    let axes: Vec<Axis> = place.axes.iter().map(|(axis, _)| *axis).chain(missing.iter().copied()).collect();
    let shape = lengths.into_iter().chain(missing.iter().map(|_| 1)).collect();
    WrittenRule { of: Some(Of { shape, start: None, end: None }), axes: names(&axes), ..rule }
}

/// The tap's axes that an array does not show, being of length 1.
fn missing(own: &[Axis], axes: &[(Axis, usize)]) -> Vec<Axis> {
    let has = |wanted: Axis| axes.iter().any(|(axis, _)| *axis == wanted);
    let is_split = |axis: Axis| axis == Axis::Hidden && (has(Axis::Head) || has(Axis::HeadDim));
    let head = own.iter().any(|&axis| is_split(axis)) && !has(Axis::Head);
    own.iter()
        .copied()
        .filter(|&axis| !has(axis) && !is_split(axis))
        .chain(head.then_some(Axis::Head))
        .collect()
}

/// What each axis of an array is, if each is one of the tap's, or all heads merged.
fn named(shape: &[usize], axes: &[(Axis, usize)]) -> Option<Vec<Axis>> {
    let (mut left, mut names) = (axes, Vec::new());
    for &length in shape.iter().skip_while(|&&length| length == 1) {
        let (axis, rest) = match left {
            [(axis, one), rest @ ..] if *one == length => (*axis, rest),
            [(Axis::Head | Axis::KvHead, heads), (Axis::HeadDim, one), rest @ ..]
                if heads * one == length =>
            {
                (Axis::Hidden, rest)
            }
            _ => return None,
        };
        names.push(axis);
        left = rest;
    }
    left.is_empty().then_some(names)
}

/// Rules that differ by the layer alone as one, where the number is in the name.
fn grouped(findings: &[Finding], rules: Vec<(&Finding, WrittenRule)>) -> Vec<WrittenRule> {
    let mut groups: BTreeMap<(String, String), Vec<usize>> = BTreeMap::new();
    let mut grouped: Vec<WrittenRule> = Vec::new();
    let mut single = Vec::new();
    for (index, (finding, rule)) in rules.iter().enumerate() {
        match finding.places.len() {
            1 => {
                let general = generalised(&finding.name, finding.places[0].site, rule);
                let key = general.map(|general| (format!("{:?}", general.name), format!("{general:?}")));
                match key {
                    Some(key) => groups.entry(key).or_default().push(index),
                    None => single.push(index),
                }
            }
            _ => single.push(index),
        }
    }
    for ((_, _), members) in groups {
        let (finding, rule) = &rules[members[0]];
        let general = generalised(&finding.name, finding.places[0].site, rule);
        match general.filter(|general| is_of_these_alone(general, findings, &rules, &members)) {
            Some(general) => grouped.push(general),
            None => single.extend(members),
        }
    }
    single.sort_unstable();
    for index in single {
        grouped.extend(of_parts(rules[index].0, &rules[index].1));
    }
    grouped
}

/// The rule of a fused array, a row for each of its taps: each says its part.
fn of_parts(finding: &Finding, rule: &WrittenRule) -> Vec<WrittenRule> {
    let part = |place: &Place| {
        let (of, axes) = place.of.clone()?;
        let axes = Some(axes.iter().map(|axis| axis.name().to_owned()).collect());
        let tap = Some(place.site.point.name().to_owned());
        Some(WrittenRule { tap, of: Some(of), axes, ..rule.clone() })
    };
    match finding.places.len() {
        1 => vec![rule.clone()],
        _ => finding.places.iter().filter_map(part).collect(),
    }
}

/// The same for any layer, where one number of the name tells it.
fn generalised(name: &str, site: Site, rule: &WrittenRule) -> Option<WrittenRule> {
    let layer = site.layer?;
    let mut digits = Vec::new();
    let mut start = None;
    for (at, one) in name.char_indices().chain([(name.len(), ' ')]) {
        match (one.is_ascii_digit(), start) {
            (true, None) => start = Some(at),
            (false, Some(from)) => {
                digits.push(from..at);
                start = None;
            }
            _ => {}
        }
    }
    let number = |range: &std::ops::Range<usize>| name[range.clone()].parse::<usize>().ok();
    let exact = digits.iter().find(|range| number(range) == Some(layer)).cloned();
    let range = exact.or_else(|| digits.first().cloned().filter(|_| digits.len() == 1))?;
    let offset = isize::try_from(layer).ok()? - isize::try_from(number(&range)?).ok()?;
    let pattern = format!(
        "{}{{layer}}{}",
        Pattern::literal(&name[..range.start]),
        Pattern::literal(&name[range.end..])
    );
    Some(WrittenRule {
        name: Names::One(pattern),
        layer: None,
        offset: (offset != 0).then_some(offset),
        ..rule.clone()
    })
}

/// Whether a pattern is of no array that is something else.
fn is_of_these_alone(
    general: &WrittenRule,
    findings: &[Finding],
    rules: &[(&Finding, WrittenRule)],
    members: &[usize],
) -> bool {
    let Names::One(written) = &general.name else { return false };
    let Ok(pattern) = Pattern::new(written) else { return false };
    let names: Vec<&str> = members.iter().map(|&index| rules[index].0.name.as_str()).collect();
    members.len() > 1
        && findings.iter().all(|one| pattern.of(&one.name).is_none() || names.contains(&one.name.as_str()))
}
