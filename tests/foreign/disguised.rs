//! Arrays of shipped dumps, as somebody might have saved them who knows nothing of taps.

use std::path::Path;

use xcheck::checkpoint::{Site, ValueKind};
use xcheck::dump::Dump;
use xcheck::dump::layout::to_axes;
use xcheck::format::Arrays;
use xcheck::view::View;
use xcheck::weight::{DType, StoredTensor};

/// An array, and what it is.
pub struct Disguised {
    pub name: String,
    pub site: Site,
    pub stored: StoredTensor,
}

/// In which way an array is stored.
#[derive(Clone, Copy, Debug)]
pub enum Disguise {
    Plain,
    Half,
    Reversed,
    Batch,
    HeadsFirst,
    Flat,
}

pub const ALL: [Disguise; 6] = [
    Disguise::Plain,
    Disguise::Half,
    Disguise::Reversed,
    Disguise::Batch,
    Disguise::HeadsFirst,
    Disguise::Flat,
];

/// The values of a place in a dump.
pub fn view(dump: &Dump, site: Site) -> View<'static> {
    let view = dump.view(site).expect("it is sound").expect("it is there");
    to_axes(view, &dump.axes(site).expect("it is there"), site.point.axes()).expect("they fit")
}

/// The real-valued places of a pass.
pub fn places(dump: &Dump, pass: usize) -> Vec<Site> {
    let is_asked = |site: &Site| site.pass == Some(pass) && site.point.kind() == ValueKind::Real;
    let mut sites: Vec<Site> = dump.sites().filter(is_asked).collect();
    sites.sort_by_key(|site| site.flow_order());
    sites
}

pub fn stored(shape: &[usize], values: &[f64]) -> StoredTensor {
    let bytes: Vec<u8> = values.iter().flat_map(|&value| (value as f32).to_le_bytes()).collect();
    StoredTensor { dtype: DType::F32, shape: shape.to_vec(), data: bytes.into() }
}

pub fn disguised(view: View, disguise: Disguise) -> StoredTensor {
    let rank = view.shape().len();
    match disguise {
        Disguise::Plain => stored(view.shape(), &view.to_vec()),
        Disguise::Half => {
            let bytes: Vec<u8> =
                view.to_vec().iter().flat_map(|&value| half::f16::from_f64(value).to_le_bytes()).collect();
            StoredTensor { dtype: DType::F16, shape: view.shape().to_vec(), data: bytes.into() }
        }
        Disguise::Reversed => {
            let turned = view.permuted(&(0..rank).rev().collect::<Vec<_>>());
            stored(turned.shape(), &turned.to_vec())
        }
        Disguise::Batch => stored(&[&[1], view.shape()].concat(), &view.to_vec()),
        Disguise::HeadsFirst if rank == 3 => {
            let turned = view.permuted(&[1, 0, 2]);
            stored(&[&[1], turned.shape()].concat(), &turned.to_vec())
        }
        Disguise::HeadsFirst => stored(view.shape(), &view.to_vec()),
        Disguise::Flat => stored(&[view.len()], &view.to_vec()),
    }
}

pub fn arrays(all: &[Disguised]) -> Arrays {
    let entries = all.iter().map(|one| (one.name.clone(), one.stored.clone())).collect();
    Arrays::of(Path::new("disguised"), entries, Vec::new()).expect("each has a name of its own")
}
