//! Layouts of a tap in a stored array: permuted axes, merged axes, a range of rows, or a part of a fused
//! array.

use crate::checkpoint::{Point, Site, TapAxis};
use crate::dump::ArrayPart;
use crate::identify::sizes::AxisSizes;
use crate::tensor::RopePairing;
use crate::view::orders;

/// One axis that the array and the tap have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StridedTapAxis {
    pub(crate) axis: TapAxis,
    pub(crate) length: usize,
    /// Stride in the array, in elements.
    pub(crate) theirs: usize,
    /// Stride in the tap, in elements.
    pub(crate) ours: usize,
}

/// The layout of a tap in an array.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ArrayLayout {
    /// The axes, outermost first, in the array's order.
    pub(crate) axes: Vec<StridedTapAxis>,
    /// Offset of the first value in the array, in elements.
    pub(crate) theirs: usize,
    /// Offset of the first value in the tap, in elements.
    pub(crate) ours: usize,
    /// First token (or key) and number of tokens, if the array has only some.
    pub(crate) rows: Option<(usize, usize)>,
    /// RoPE pairing of the array's heads, if it differs from the model's.
    pub(crate) pairing: Option<RopePairing>,
    /// Part of a fused array that is the tap; `None` if the whole array is the tap.
    pub(crate) part: Option<FusedPart>,
}

/// The part of a fused array that is one tap.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FusedPart {
    pub(crate) of: ArrayPart,
    pub(crate) axes: Vec<TapAxis>,
}

impl ArrayLayout {
    pub(crate) fn len(&self) -> usize {
        self.axes.iter().map(|axis| axis.length).product()
    }

    /// Returns the offsets of a value in the array and in the tap. Its token and key are counted from the first ones of
    /// the layout.
    pub(crate) fn at(&self, flat: usize) -> ValueIndices {
        let mut at = ValueIndices { theirs: self.theirs, ours: self.ours, token: 0, key: None };
        let mut rest = flat;
        for axis in self.axes.iter().rev() {
            let index = rest % axis.length;
            rest /= axis.length;
            at.theirs += index * axis.theirs;
            at.ours += index * axis.ours;
            match axis.axis {
                TapAxis::Token => at.token = index,
                TapAxis::Key => at.key = Some(index),
                _ => {}
            }
        }
        at
    }

    /// Returns the three groups that a value belongs to: its row (token, or key in a cache), its position within the
    /// row, and its vector along the tap's last axis.
    pub(crate) fn groups(&self, at: ValueIndices) -> [usize; 3] {
        let along = |axis: TapAxis| self.axes.iter().find(|one| one.axis == axis).map(|one| one.ours);
        let (row, stride) = match (along(TapAxis::Token), along(TapAxis::Key)) {
            (Some(stride), _) => (at.token, stride),
            (None, Some(stride)) => (at.key.unwrap_or(0), stride),
            (None, None) => (0, 0),
        };
        let last = self.axes.iter().find(|one| one.ours == 1).map(|one| one.axis);
        let lengths = self.axes.iter().filter(|one| Some(one.axis) == last).map(|one| one.length);
        let place = at.ours - self.ours;
        [row, place - row * stride, place / lengths.product::<usize>().max(1)]
    }

    /// Returns true if the axes are in the tap's own order.
    pub(crate) fn is_in_order(&self) -> bool {
        self.axes.windows(2).all(|two| two[0].ours >= two[1].ours)
    }

    /// Returns the axes in the array's order, with the two halves of a rotated head merged into one axis.
    pub(crate) fn order(&self) -> Vec<(TapAxis, usize)> {
        let mut order: Vec<(TapAxis, usize)> = Vec::new();
        for one in &self.axes {
            match order.last_mut() {
                Some((TapAxis::HeadDim, length)) if one.axis == TapAxis::HeadDim => *length *= one.length,
                _ => order.push((one.axis, one.length)),
            }
        }
        order
    }
}

/// Indices of one value: its offsets in the array and in the tap, its token, and its key.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValueIndices {
    pub(crate) theirs: usize,
    pub(crate) ours: usize,
    pub(crate) token: usize,
    pub(crate) key: Option<usize>,
}

/// Axes of a tap except those of length 1, the offset of the first value, and the first row and row count if only
/// some rows are used.
type TapAtoms = (Vec<AxisAtom>, usize, Option<(usize, usize)>);

/// An axis of a tap that is not yet assigned to an axis of the array.
#[derive(Clone, Copy, Debug)]
struct AxisAtom {
    axis: TapAxis,
    length: usize,
    stride: usize,
}

/// Returns every layout in which an array of one shape can contain a tap of another shape.
pub(super) fn ways(site: Site, tap: &[usize], array: &[usize], sizes: &AxisSizes) -> Vec<ArrayLayout> {
    let plain: Vec<usize> = array.iter().copied().filter(|&length| length != 1).collect();
    let elements: usize = plain.iter().product();
    let whole: usize = tap.iter().product();
    let mut ways = Vec::new();
    if elements <= whole {
        for (atoms, first, rows) in cuts(site.point, tap, elements, sizes) {
            for order in orders(atoms.len()) {
                let ordered: Vec<AxisAtom> = order.iter().map(|&index| atoms[index]).collect();
                if is_grouping(&ordered, &plain) {
                    ways.extend(laid(&ordered, first, rows, site.point, sizes));
                }
            }
        }
    } else {
        ways.extend(fused(site.point, tap, &plain, sizes));
    }
    ways.dedup();
    ways
}

/// Returns the axes of a tap: whole, or cut to a range of rows so that the number of values equals
/// `elements`.
fn cuts(point: Point, tap: &[usize], elements: usize, sizes: &AxisSizes) -> Vec<TapAtoms> {
    let atoms = atoms(point, tap, sizes);
    let whole: usize = tap.iter().product();
    if elements == whole {
        return vec![(plain(atoms), 0, None)];
    }
    // Rows of attention scores and weights can also have fewer keys; only whole taps are supported.
    let rows = atoms.iter().position(|atom| matches!(atom.axis, TapAxis::Token | TapAxis::Key));
    let is_of_rows = !matches!(point, Point::AttnScores | Point::AttnWeights);
    let Some(rows) = rows.filter(|_| is_of_rows) else { return Vec::new() };
    let (length, stride) = (atoms[rows].length, atoms[rows].stride);
    let each = whole / length;
    if elements == 0 || !elements.is_multiple_of(each) {
        return Vec::new();
    }
    let count = elements / each;
    // A cache always starts at position 0.
    let firsts = if atoms[rows].axis == TapAxis::Key { 0..=0 } else { 0..=length - count };
    let cut = |first: usize| {
        let mut atoms = atoms.clone();
        atoms[rows].length = count;
        (plain(atoms), first * stride, Some((first, count)))
    };
    firsts.map(cut).collect()
}

fn atoms(point: Point, tap: &[usize], sizes: &AxisSizes) -> Vec<AxisAtom> {
    let mut atoms = Vec::new();
    let mut stride = tap.iter().product::<usize>();
    for (&axis, &length) in point.axes().iter().zip(tap) {
        stride = stride.checked_div(length).unwrap_or(1);
        let has_heads = axis == TapAxis::Hidden && matches!(point, Point::AttnContext | Point::AttnSubNorm);
        if has_heads && length == sizes.heads * sizes.head_dim {
            atoms.push(AxisAtom {
                axis: TapAxis::Head,
                length: sizes.heads,
                stride: stride * sizes.head_dim,
            });
            atoms.push(AxisAtom { axis: TapAxis::HeadDim, length: sizes.head_dim, stride });
        } else {
            atoms.push(AxisAtom { axis, length, stride });
        }
    }
    atoms
}

fn plain(atoms: Vec<AxisAtom>) -> Vec<AxisAtom> {
    atoms.into_iter().filter(|atom| atom.length != 1).collect()
}

/// Returns true if neighbouring axes can be merged into a shape.
fn is_grouping(atoms: &[AxisAtom], shape: &[usize]) -> bool {
    let mut left = atoms.iter();
    shape.iter().all(|&length| {
        let mut merged = 1;
        while merged < length {
            let Some(atom) = left.next() else { return false };
            merged *= atom.length;
        }
        merged == length
    }) && left.next().is_none()
}

/// Returns the layouts for one order of the axes: with the model's RoPE pairing, and with the other pairing.
fn laid(
    atoms: &[AxisAtom],
    ours: usize,
    rows: Option<(usize, usize)>,
    point: Point,
    sizes: &AxisSizes,
) -> Vec<ArrayLayout> {
    let mut axes = Vec::new();
    let mut stride: usize = atoms.iter().map(|atom| atom.length).product();
    for &AxisAtom { axis, length, stride: own } in atoms {
        stride /= length;
        axes.push(StridedTapAxis { axis, length, theirs: stride, ours: own });
    }
    let way = ArrayLayout { axes, theirs: 0, ours, rows, pairing: None, part: None };
    let other = otherwise_paired(&way, point, sizes);
    std::iter::once(way).chain(other).collect()
}

/// Returns the same layout with the other RoPE pairing.
fn otherwise_paired(way: &ArrayLayout, point: Point, sizes: &AxisSizes) -> Option<ArrayLayout> {
    let own = sizes.pairing.filter(|_| point.follows_rope_pairing())?;
    let at = way.axes.iter().position(|one| one.axis == TapAxis::HeadDim)?;
    let whole = way.axes[at];
    let half = whole.length / 2;
    let split = |pairing: RopePairing, stride: usize| match pairing {
        RopePairing::Half => [half * stride, stride],
        RopePairing::Interleaved => [stride, 2 * stride],
    };
    let (ours, theirs) = (split(own, whole.ours), split(own.other(), whole.theirs));
    let mut axes = way.axes.clone();
    let member = StridedTapAxis { axis: TapAxis::HeadDim, length: 2, theirs: theirs[0], ours: ours[0] };
    let pair = StridedTapAxis { axis: TapAxis::HeadDim, length: half, theirs: theirs[1], ours: ours[1] };
    axes.splice(at..=at, [member, pair]);
    Some(ArrayLayout { axes, pairing: Some(own.other()), ..way.clone() })
}

/// Returns the layouts in which the tap is a part of a fused array.
fn fused(point: Point, tap: &[usize], array: &[usize], sizes: &AxisSizes) -> Vec<ArrayLayout> {
    let Some((&tokens, inner)) = tap.split_first() else { return Vec::new() };
    let elements: usize = array.iter().product();
    if tokens == 0 || !elements.is_multiple_of(tokens) {
        return Vec::new();
    }
    let (all, own) = (elements / tokens, inner.iter().product::<usize>());
    let forms = match point {
        Point::Q | Point::K | Point::V => projections(point, all, sizes),
        Point::FfnGate | Point::FfnUp if all == 2 * own => halves(point, own),
        _ => Vec::new(),
    };
    let is_first = tokens == 1 || array.first() == Some(&tokens);
    let mut ways = Vec::new();
    for form in forms.into_iter().filter(|_| is_first) {
        let shape = [&[tokens], form.shape.as_slice()].concat();
        let mut start = vec![0; shape.len()];
        let mut end = shape.clone();
        (start[form.along + 1], end[form.along + 1]) = (form.from, form.to);
        let stride = |axis: usize| shape[axis + 1..].iter().product::<usize>();
        let mut axes = Vec::new();
        let mut ours: usize = tokens * own;
        for (axis, &name) in [&[TapAxis::Token], form.axes.as_slice()].concat().iter().enumerate() {
            let length = end[axis] - start[axis];
            ours /= length;
            axes.push(StridedTapAxis { axis: name, length, theirs: stride(axis), ours });
        }
        let names = axes.iter().map(|one| one.axis).collect();
        axes.retain(|one| one.length != 1);
        let theirs = form.from * stride(form.along + 1);
        let part =
            Some(FusedPart { of: ArrayPart { shape, start: Some(start), end: Some(end) }, axes: names });
        let way = ArrayLayout { axes, theirs, ours: 0, rows: None, pairing: None, part };
        ways.extend(otherwise_paired(&way, point, sizes));
        ways.push(way);
    }
    ways
}

/// The components of a fused row, and the component that is the tap.
struct FusedRow {
    shape: Vec<usize>,
    axes: Vec<TapAxis>,
    along: usize,
    from: usize,
    to: usize,
}

/// Returns the layouts of fused queries, keys and values: concatenated in any order, or grouped by key-value
/// head.
fn projections(point: Point, all: usize, sizes: &AxisSizes) -> Vec<FusedRow> {
    let AxisSizes { heads, kv_heads, head_dim, .. } = *sizes;
    if head_dim == 0 || kv_heads == 0 || all != (heads + 2 * kv_heads) * head_dim {
        return Vec::new();
    }
    let (count, axis, mut firsts) = match point {
        Point::Q => (heads, TapAxis::Head, vec![0, kv_heads, 2 * kv_heads]),
        _ => (kv_heads, TapAxis::KvHead, vec![heads, heads + kv_heads, 0, kv_heads]),
    };
    firsts.sort_unstable();
    firsts.dedup();
    let beside = |first: usize| FusedRow {
        shape: vec![heads + 2 * kv_heads, head_dim],
        axes: vec![axis, TapAxis::HeadDim],
        along: 0,
        from: first,
        to: first + count,
    };
    let group = heads / kv_heads;
    let (from, to) = match point {
        Point::Q => (0, group),
        Point::K => (group, group + 1),
        _ => (group + 1, group + 2),
    };
    let by_head = FusedRow {
        shape: vec![kv_heads, group + 2, head_dim],
        axes: vec![TapAxis::KvHead, TapAxis::Group, TapAxis::HeadDim],
        along: 1,
        from,
        to,
    };
    firsts.into_iter().map(beside).chain([by_head]).collect()
}

/// Returns the layouts of a fused gate and up projection: concatenated in either order, or interleaved.
fn halves(point: Point, width: usize) -> Vec<FusedRow> {
    let index = usize::from(point == Point::FfnUp);
    let beside = |index: usize| FusedRow {
        shape: vec![2 * width],
        axes: vec![TapAxis::Ffn],
        along: 0,
        from: index * width,
        to: (index + 1) * width,
    };
    let shape = vec![width, 2];
    let in_turn =
        FusedRow { shape, axes: vec![TapAxis::Ffn, TapAxis::Batch], along: 1, from: index, to: index + 1 };
    vec![beside(index), beside(1 - index), in_turn]
}
