//! Arrays seen through an index, against the same made by moving every element.

use half::{bf16, f16};
use proptest::prelude::*;
use xcheck_engine::measure::unravel;
use xcheck_engine::tensor::Tensor;
use xcheck_engine::view::View;
use xcheck_engine::weight::DType;

/// An array whose elements are moved.
#[derive(Clone, Debug, PartialEq)]
struct Moved {
    shape: Vec<usize>,
    data: Vec<f64>,
}

impl Moved {
    fn counted(shape: &[usize]) -> Self {
        Self { shape: shape.to_vec(), data: (0..shape.iter().product()).map(|at: usize| at as f64).collect() }
    }

    fn at(&self, index: &[usize]) -> f64 {
        let flat = index.iter().zip(&self.shape).fold(0, |flat, (&at, &length)| flat * length + at);
        self.data[flat]
    }

    /// The array of that shape whose element at an index is `value(index)`.
    fn made(shape: &[usize], value: impl Fn(&[usize]) -> f64) -> Self {
        let count = shape.iter().product();
        let data = (0..count).map(|flat| value(&unravel(flat, shape))).collect();
        Self { shape: shape.to_vec(), data }
    }

    fn slice(&self, axis: usize, from: usize, to: usize) -> Self {
        let mut shape = self.shape.clone();
        shape[axis] = to - from;
        Self::made(&shape, |index| {
            let mut there = index.to_vec();
            there[axis] += from;
            self.at(&there)
        })
    }

    fn view(&self) -> View<'_> {
        View::of(&self.shape, &self.data)
    }
}

fn is_same(view: &View, moved: &Moved) {
    assert_eq!((view.shape(), view.to_vec()), (moved.shape.as_slice(), moved.data.clone()));
    for (flat, &value) in moved.data.iter().enumerate() {
        assert_eq!(view.get(flat), value);
    }
    let width = view.width();
    for row in 0..view.rows() {
        let mut middle = vec![0.0; width - width / 2];
        view.read(row, width / 2..width, &mut middle);
        assert_eq!(middle, moved.data[row * width + width / 2..(row + 1) * width]);
    }
}

#[test]
fn axes_are_seen_in_any_order_and_those_of_one_entry_may_be_left_out() {
    let array = Moved::counted(&[2, 3, 4]);
    is_same(&array.view().permuted(&[2, 0, 1]), &Moved::made(&[4, 2, 3], |i| array.at(&[i[1], i[2], i[0]])));
    let batch = Moved::counted(&[1, 3, 4]);
    is_same(&batch.view().permuted(&[2, 1]), &Moved::made(&[4, 3], |i| batch.at(&[0, i[1], i[0]])));
}

#[test]
fn rows_are_seen_in_another_order_of_their_entries_and_then_cut() {
    let array = Moved::counted(&[3, 4]);
    let order = [0, 2, 1, 3];
    let seen = Moved::made(&[3, 4], |i| array.at(&[i[0], order[i[1]]]));
    is_same(&array.view().reordered(&order), &seen);
    is_same(&array.view().reordered(&order).slice(1, 1..3), &seen.slice(1, 1, 3));
}

#[test]
fn rows_are_filled_up_with_zeros_that_are_in_no_file() {
    let array = Moved::counted(&[2, 2, 3]);
    let filled = Moved::made(&[2, 2, 5], |i| if i[2] < 3 { array.at(i) } else { 0.0 });
    is_same(&array.view().with_width(5), &filled);
    is_same(&array.view().with_width(5).slice(2, 2..5), &filled.slice(2, 2, 5));
    is_same(&array.view().with_width(2), &array.slice(2, 0, 2));
}

#[test]
fn every_bf16_and_f16_number_is_widened_to_itself() {
    let stored: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let half = |bits| f16::from_bits(bits).to_f32();
    let brain = |bits| bf16::from_bits(bits).to_f32();
    for (dtype, number) in [(DType::F16, half as fn(u16) -> f32), (DType::BF16, brain)] {
        let view = View::stored(&[256, 256], dtype, stored.clone()).expect("all of them");
        let (wide, short) = (view.to_vec(), Tensor::from(&view));
        for (bits, (wide, short)) in (0..=u16::MAX).zip(wide.into_iter().zip(short.data())) {
            let number = number(bits);
            let is_number =
                short.to_bits() == number.to_bits() && wide.to_bits() == f64::from(number).to_bits();
            let is_nan = number.is_nan() && short.is_nan() && wide.is_nan();
            assert!(is_number || is_nan, "{dtype:?} {bits:04x}: {short} and {wide} for {number}");
        }
    }
}

#[test]
fn what_is_stored_is_widened_and_told_from_what_has_no_exact_number() {
    let halves: Vec<u8> =
        [1.5f32, -0.1, 65504.0].iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect();
    let view = View::stored(&[3], DType::F16, halves).expect("three halves");
    assert_eq!(view.to_vec(), [1.5, f16::from_f32(-0.1).to_f64(), 65504.0]);
    let brains: Vec<u8> = [1.5f32, -0.1].iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect();
    let view = View::stored(&[2], DType::BF16, brains).expect("two numbers");
    assert_eq!(view.to_vec(), [1.5, bf16::from_f32(-0.1).to_f64()]);
    let ids = |id: i64| View::stored(&[1], DType::I64, id.to_le_bytes().to_vec());
    assert_eq!(ids(-7).expect("a small number").to_vec(), [-7.0]);
    assert!(ids((1 << 53) + 1).is_none() && ids(i64::MIN).is_none(), "no f64 is this number");
    let id = (1u64 << 53) + 1;
    assert!(View::stored(&[1], DType::U64, id.to_le_bytes().to_vec()).is_none());
    assert!(View::stored(&[2], DType::F32, vec![0; 7]).is_none(), "not whole elements");
    assert!(View::stored(&[usize::MAX, 2], DType::F32, vec![0; 8]).is_none(), "more than there can be");
    assert!(View::stored(&[32], DType::Q8_0, vec![0; 34]).is_none(), "blocks are no plain numbers");
}

/// What a view may be seen as.
type See = for<'v> fn(View<'v>) -> View<'v>;

#[test]
fn scales_are_seen_as_their_values_are() {
    let shape = [3, 4, 6];
    let (codes, scales) = (Moved::counted(&shape), Moved { shape: vec![3, 1, 1], data: vec![0.5, 2.0, 3.0] });
    let spread = scales.view().spread(&shape).expect("it fits");
    is_same(&spread, &Moved::made(&shape, |index| scales.data[index[0]]));
    let products = Moved::made(&shape, |index| codes.at(index) * scales.data[index[0]]);
    let scaled = || codes.view().scaled(scales.view().spread(&shape).expect("it fits"));
    let seen: [See; 9] = [
        |view| view,
        |view| view.permuted(&[1, 2, 0]),
        |view| view.reordered(&[5, 3, 1, 0, 2, 4]).slice(2, 1..4),
        |view| view.slice(0, 1..3).slice(1, 0..2),
        |view| view.taken(0, &[0, 2]).taken(2, &[1, 2, 5]),
        |view| view.merged(0),
        |view| view.permuted(&[2, 0, 1]).merged(1),
        |view| view.with_width(4).with_width(8),
        |view| View::joined(vec![view.clone().slice(2, 2..6), view.slice(2, 0..1)], 2),
    ];
    for (case, see) in seen.iter().enumerate() {
        let (one, other) = (see(scaled()), see(products.view()));
        assert_eq!((one.shape(), one.to_vec()), (other.shape(), other.to_vec()), "case {case}");
        let codes = see(codes.view()).to_vec();
        let scales = one.scales().expect("it has some").to_vec();
        let again: Vec<f64> = codes.iter().zip(scales).map(|(code, scale)| code * scale).collect();
        assert_eq!(again, other.to_vec(), "case {case}");
        assert!(one.raw(0, 0..1).is_none(), "what is stored is not what it stands for");
    }
    // Beside values that have none.
    let (zeros, rest) = (vec![0.25; 24], scaled().slice(0, 1..3));
    let mixed = View::joined(vec![View::of(&[1, 4, 6], &zeros), rest.clone()], 0);
    assert_eq!(mixed.to_vec(), [zeros.clone(), rest.to_vec()].concat());
    assert_eq!(mixed.scales().expect("it has some").get(0), 1.0);
    assert!(Moved::counted(&[2, 1, 1]).view().spread(&shape).is_none());
    assert!(Moved::counted(&[1, 3, 4, 6]).view().spread(&shape).is_none());
}

proptest! {
    /// Passes cut anywhere, put together and cut again.
    #[test]
    fn parts_behind_each_other_are_cut_as_one(
        lengths in prop::collection::vec(0usize..4, 1..5),
        axis in 0usize..2,
        ends in (0usize..20, 0usize..20),
    ) {
        let total: usize = lengths.iter().sum();
        let mut shape = vec![2, 2, 3];
        shape[axis] = total;
        let whole = Moved::counted(&shape);
        let mut first = 0;
        let parts: Vec<Moved> = lengths
            .iter()
            .map(|length| {
                first += length;
                whole.slice(axis, first - length, first)
            })
            .collect();
        let joined = View::joined(parts.iter().map(Moved::view).collect(), axis);
        is_same(&joined, &whole);
        let (from, to) = (ends.0.min(ends.1).min(total), ends.0.max(ends.1).min(total));
        is_same(&joined.clone().slice(axis, from..to), &whole.slice(axis, from, to));
        is_same(&joined.slice(2, 1..3), &whole.slice(2, 1, 3));
    }
}
