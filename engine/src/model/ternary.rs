//! Settings that bitnet.cpp's files omit: the layout of I2_S, and the tiles of the TL1 and TL2 kernels.

use std::str::FromStr;

use crate::error::{Error, ModelError, Result};
use crate::format::{FileBytes, TensorFile};
use crate::quant::bitnet_files::{self, Tiles};
use crate::weight::{DType, StoredTensor};

/// Layout of the weights in an I2_S file; the file does not state it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum I2sLayout {
    /// Blocks of 128 weights, as x86 builds and all of bitnet.cpp's converters write.
    #[default]
    X86,
    /// Blocks of 64 weights, as ARM builds quantise since November 2025.
    Arm,
}

/// Settings for reading ternary files.
#[derive(Clone, Debug, Default)]
pub struct TernaryFiles {
    /// The layout of I2_S.
    pub layout: I2sLayout,
    /// Tiles of the kernels that TL1 and TL2 files were made for, before those of the known models.
    pub kernels: Vec<KernelConfig>,
}

/// The tiles of the kernel for matrices of one shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelConfig {
    /// Outputs (M).
    pub rows: usize,
    /// Inputs (K).
    pub columns: usize,
    /// Tiles of the kernel.
    pub tiles: Tiles,
}

/// The kernels for the released models: bitnet_b1_58-large, and -3B, as bitnet.cpp's setup generates them.
#[rustfmt::skip]
const PRESETS: &[(DType, usize, usize, [usize; 3])] = &[
    (DType::TL1, 1536, 4096, [256, 128, 32]),
    (DType::TL1, 1536, 1536, [128, 64, 64]),
    (DType::TL1, 4096, 1536, [256, 128, 32]),
    (DType::TL1, 3200, 8640, [160, 64, 32]),
    (DType::TL1, 3200, 3200, [320, 128, 64]),
    (DType::TL1, 8640, 3200, [320, 64, 32]),
    (DType::TL2, 1536, 4096, [256, 96, 32]),
    (DType::TL2, 1536, 1536, [128, 192, 32]),
    (DType::TL2, 4096, 1536, [256, 96, 32]),
    (DType::TL2, 3200, 8640, [160, 96, 32]),
    (DType::TL2, 3200, 3200, [320, 96, 32]),
    (DType::TL2, 8640, 3200, [320, 96, 32]),
];

impl TernaryFiles {
    /// Reads the kernels that are described in a `kernel_config.ini` of bitnet.cpp's code generators.
    ///
    /// # Errors
    /// If a section lacks a size, or one is no number.
    pub fn with_kernels(mut self, file: &FileBytes) -> Result<Self> {
        let text = std::str::from_utf8(&file.data).map_err(|error| bad_ini(file, 0, error.to_string()))?;
        let mut section: Option<Section> = None;
        for (number, line) in text.lines().enumerate() {
            match line.split_once('=') {
                _ if line.trim().is_empty() || line.trim_start().starts_with([';', '#']) => {}
                _ if line.trim_start().starts_with('[') => {
                    self.kernels
                        .extend(section.replace(Section::new(number)).map(|s| s.kernel(file)).transpose()?);
                }
                Some((key, value)) => match &mut section {
                    Some(section) => section.set(file, number, key.trim(), value.trim())?,
                    None => return Err(bad_ini(file, number, "a key before the first section".into())),
                },
                None => {
                    return Err(bad_ini(file, number, "neither a section nor a key with a value".into()));
                }
            }
        }
        self.kernels.extend(section.map(|section| section.kernel(file)).transpose()?);
        if self.kernels.is_empty() {
            return Err(bad_ini(file, 0, "no kernel section".into()));
        }
        Ok(self)
    }

    /// The tensors with ternary matrices in rows that products can read; the others as they are.
    ///
    /// # Errors
    /// If the tiles of a kernel are not known, or do not fit; if a code stands for nothing.
    pub fn unpacked(&self, file: TensorFile) -> Result<TensorFile> {
        let path = file.path().to_owned();
        file.try_map(|name, tensor| match (tensor.dtype, self.layout) {
            (DType::I2_S, I2sLayout::Arm) => Ok(from_arm(tensor)),
            (dtype @ (DType::TL1 | DType::TL2), _) => self.unpack(tensor).map_err(|problem| {
                let (file, tensor) = (path.clone(), name.to_owned());
                ModelError::Unpackable { file, tensor, dtype, problem }.into()
            }),
            _ => Ok(tensor.clone()),
        })
    }

    /// A TL1 or TL2 matrix; else what is in the way.
    fn unpack(&self, tensor: &StoredTensor) -> Result<StoredTensor, String> {
        let &[rows, columns] = tensor.shape.as_slice() else {
            return Err(format!("the tensor has {} dimensions, expected 2", tensor.shape.len()));
        };
        let tiles = self.tiles(tensor.dtype, rows, columns).ok_or_else(|| unknown_tiles(rows, columns))?;
        let bytes = tensor.data.len() - tensor.dtype.tail_bytes();
        let codes = match tensor.dtype {
            DType::TL1 if bitnet_files::tl1_fits(rows, columns, tiles) => {
                bitnet_files::from_tl1(&tensor.data, rows, columns, tiles)
            }
            DType::TL2 if bitnet_files::tl2_fits(rows, columns, tiles, bytes) => {
                bitnet_files::from_tl2(&tensor.data, rows, columns, tiles)
            }
            _ => return Err(unfit_tiles(rows, columns, tiles)),
        };
        let mut data = codes.map_err(|at| {
            format!("byte {at} of its data has an invalid index; are these tiles those of the kernels?")
        })?;
        data.extend_from_slice(&tensor.data[tensor.data.len() - DType::TL.tail_bytes()..]);
        Ok(StoredTensor { dtype: DType::TL, shape: tensor.shape.clone(), data: data.into() })
    }

    fn tiles(&self, dtype: DType, rows: usize, columns: usize) -> Option<Tiles> {
        let told = self.kernels.iter().find(|kernel| (kernel.rows, kernel.columns) == (rows, columns));
        let preset = || {
            let known = PRESETS.iter().find(|known| (known.0, known.1, known.2) == (dtype, rows, columns))?;
            let [rows, columns, together] = known.3;
            Some(Tiles { rows, columns, together })
        };
        told.map(|kernel| kernel.tiles).or_else(preset)
    }
}

impl FromStr for I2sLayout {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "x86" => Ok(I2sLayout::X86),
            "arm" => Ok(I2sLayout::Arm),
            _ => Err(format!("unknown I2_S layout '{name}'; known: x86, arm")),
        }
    }
}

fn from_arm(tensor: &StoredTensor) -> StoredTensor {
    let (codes, tail) = tensor.data.split_at(tensor.data.len() - DType::I2_S.tail_bytes());
    let data = [&bitnet_files::from_arm(codes), tail].concat();
    StoredTensor { dtype: DType::I2_S, shape: tensor.shape.clone(), data: data.into() }
}

fn unknown_tiles(rows: usize, columns: usize) -> String {
    format!(
        "the order of its codes depends on the kernel's tiles for {rows} x {columns} matrices, which the file does not \
         state and which are not those of a known model; give the kernel_config.ini of the build that made it \
         (--kernel-config)"
    )
}

fn unfit_tiles(rows: usize, columns: usize, tiles: Tiles) -> String {
    let Tiles { rows: tile_rows, columns: tile_columns, together } = tiles;
    format!(
        "a {rows} x {columns} matrix cannot be divided into tiles of {tile_rows} x {tile_columns}, {together} rows \
         together; give the kernel_config.ini of the build that made it (--kernel-config)"
    )
}

/// A section of a `kernel_config.ini`.
struct Section {
    line: usize,
    sizes: [Option<usize>; 5],
}

impl Section {
    const KEYS: [&'static str; 5] = ["m", "k", "bm", "bk", "bmm"];

    fn new(line: usize) -> Self {
        Self { line, sizes: [None; 5] }
    }

    fn set(&mut self, file: &FileBytes, line: usize, key: &str, value: &str) -> Result<()> {
        let Some(index) = Self::KEYS.iter().position(|known| *known == key) else { return Ok(()) };
        let size = value.parse().ok().filter(|size| (1..=1 << 24).contains(size));
        self.sizes[index] = Some(
            size.ok_or_else(|| bad_ini(file, line, format!("{key} is {value}, expected 1 to 16777216")))?,
        );
        Ok(())
    }

    fn kernel(&self, file: &FileBytes) -> Result<KernelConfig> {
        match self.sizes {
            [Some(rows), Some(columns), Some(bm), Some(bk), Some(bmm)] => {
                Ok(KernelConfig { rows, columns, tiles: Tiles { rows: bm, columns: bk, together: bmm } })
            }
            _ => {
                Err(bad_ini(file, self.line, format!("a section must have all of {}", Self::KEYS.join(", "))))
            }
        }
    }
}

fn bad_ini(file: &FileBytes, line: usize, problem: String) -> Error {
    let problem = format!("line {}: {problem}", line + 1);
    Error::BadContainer { file: file.path.clone(), format: "kernel_config.ini", problem }
}
