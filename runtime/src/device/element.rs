//! Element types as the CPU holds them, and how their values accumulate.
#![allow(unsafe_code)] // the trait's contract is what typed views rely on

use half::{bf16, f16};
use planc_ir::DType;
use planc_ir::sharding::ReduceKind;
use planc_ir::tensor::Element;

/// An element in memory.
///
/// # Safety
/// Every bit pattern of the type's size must be a valid value, and there is no padding.
pub unsafe trait Elem: Copy + Default + PartialOrd + Send + Sync + 'static {
    /// The element type.
    const DTYPE: DType;
    /// What sums, products and extrema are accumulated in: f64 for floats, so that the order of a
    /// long sum does not show; the type itself, wrapping, for integers.
    type Acc: Accumulator;
    /// To the accumulator.
    fn widen(self) -> Self::Acc;
    /// Rounded from the accumulator.
    fn narrow(acc: Self::Acc) -> Self;
    /// To f64 (integers beyond 2^53 round).
    fn to_f64(self) -> f64;
    /// From f64: rounds floats to nearest even; saturates integers (NaN becomes 0).
    fn from_f64(x: f64) -> Self;
    /// To an integer (floats truncate toward zero).
    fn to_int(self) -> i128;
    /// From an integer, wrapping.
    fn from_int(x: i128) -> Self;
}

/// A bool in memory: any byte; 0 is false. (A Rust `bool` may not be any byte.)
#[derive(Clone, Copy, Debug, Default)]
#[repr(transparent)]
pub struct Flag(pub u8);

impl Flag {
    /// As a bool.
    pub const fn get(self) -> bool {
        self.0 != 0
    }
}

impl PartialEq for Flag {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl PartialOrd for Flag {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        self.get().partial_cmp(&other.get())
    }
}

/// Values that combine.
pub trait Accumulator: Copy + Send + Sync {
    /// What changes nothing when combined.
    fn neutral(kind: ReduceKind) -> Self;
    /// Sum; of bools: or.
    #[must_use]
    fn add(self, other: Self) -> Self;
    /// Product; of bools: and.
    #[must_use]
    fn mul(self, other: Self) -> Self;
    /// The larger; NaN if one is.
    #[must_use]
    fn max(self, other: Self) -> Self;
    /// The smaller; NaN if one is.
    #[must_use]
    fn min(self, other: Self) -> Self;
    /// As f64.
    fn to_f64(self) -> f64;
}

impl Accumulator for f64 {
    fn neutral(kind: ReduceKind) -> Self {
        match kind {
            ReduceKind::Sum => 0.0,
            ReduceKind::Prod => 1.0,
            ReduceKind::Max => f64::NEG_INFINITY,
            ReduceKind::Min => f64::INFINITY,
        }
    }
    fn add(self, other: Self) -> Self {
        self + other
    }
    fn mul(self, other: Self) -> Self {
        self * other
    }
    fn max(self, other: Self) -> Self {
        if self >= other || self.is_nan() { self } else { other }
    }
    fn min(self, other: Self) -> Self {
        if self <= other || self.is_nan() { self } else { other }
    }
    fn to_f64(self) -> f64 {
        self
    }
}

impl Accumulator for Flag {
    fn neutral(kind: ReduceKind) -> Self {
        Self(u8::from(matches!(kind, ReduceKind::Prod | ReduceKind::Min)))
    }
    fn add(self, other: Self) -> Self {
        Self(u8::from(self.get() | other.get()))
    }
    fn mul(self, other: Self) -> Self {
        Self(u8::from(self.get() & other.get()))
    }
    fn max(self, other: Self) -> Self {
        self.add(other)
    }
    fn min(self, other: Self) -> Self {
        self.mul(other)
    }
    fn to_f64(self) -> f64 {
        Elem::to_f64(self)
    }
}

// SAFETY: a byte.
unsafe impl Elem for Flag {
    const DTYPE: DType = DType::Bool;
    type Acc = Self;
    fn widen(self) -> Self {
        self
    }
    fn narrow(acc: Self) -> Self {
        acc
    }
    fn to_f64(self) -> f64 {
        f64::from(u8::from(self.get()))
    }
    fn from_f64(x: f64) -> Self {
        Self(u8::from(x != 0.0))
    }
    fn to_int(self) -> i128 {
        i128::from(self.get())
    }
    fn from_int(x: i128) -> Self {
        Self(u8::from(x != 0))
    }
}

macro_rules! elem {
    ($t:ty, $acc:ty, $widen:expr, $narrow:expr) => {
        // SAFETY: a number of fixed size, of which every bit pattern is one.
        unsafe impl Elem for $t {
            const DTYPE: DType = <$t as Element>::DTYPE;
            type Acc = $acc;
            #[inline]
            fn widen(self) -> $acc {
                $widen(self)
            }
            #[inline]
            fn narrow(acc: $acc) -> Self {
                $narrow(acc)
            }
            #[inline]
            fn to_f64(self) -> f64 {
                Element::to_f64(self)
            }
            #[inline]
            fn from_f64(x: f64) -> Self {
                Element::from_f64(x)
            }
            #[inline]
            fn to_int(self) -> i128 {
                Element::to_int(self)
            }
            #[inline]
            fn from_int(x: i128) -> Self {
                Element::from_int(x)
            }
        }
    };
}

macro_rules! float {
    ($($t:ty),+) => {
        $(elem!($t, f64, Element::to_f64, <$t as Element>::from_f64);)+
    };
}

macro_rules! int {
    ($($t:ty),+) => {
        $(
            elem!($t, $t, std::convert::identity, std::convert::identity);

            impl Accumulator for $t {
                fn neutral(kind: ReduceKind) -> Self {
                    match kind {
                        ReduceKind::Sum => 0,
                        ReduceKind::Prod => 1,
                        ReduceKind::Max => <$t>::MIN,
                        ReduceKind::Min => <$t>::MAX,
                    }
                }
                fn add(self, other: Self) -> Self {
                    self.wrapping_add(other)
                }
                fn mul(self, other: Self) -> Self {
                    self.wrapping_mul(other)
                }
                fn max(self, other: Self) -> Self {
                    Ord::max(self, other)
                }
                fn min(self, other: Self) -> Self {
                    Ord::min(self, other)
                }
                fn to_f64(self) -> f64 {
                    Element::to_f64(self)
                }
            }
        )+
    };
}

float!(f64, f32, f16, bf16);
int!(i64, i32, i16, i8, u64, u32, u16, u8);

/// Runs `$body` with `$t` bound to the type that holds elements of `$dtype`.
macro_rules! with_elem {
    ($dtype:expr, $t:ident => $body:expr) => {{
        $crate::device::element::with_elem!(@ $dtype, $t, $body;
            F64 f64, F32 f32, F16 ::half::f16, BF16 ::half::bf16,
            I64 i64, I32 i32, I16 i16, I8 i8, U64 u64, U32 u32, U16 u16, U8 u8,
            Bool $crate::device::element::Flag)
    }};
    (@ $dtype:expr, $t:ident, $body:expr; $($variant:ident $ty:ty),+) => {
        match $dtype {
            $(::planc_ir::DType::$variant => {
                type $t = $ty;
                $body
            })+
        }
    };
}

/// Runs `$body` with `$f` bound to how accumulators of type `$acc` combine under `$kind`, so that the
/// choice is made outside of the loop.
macro_rules! with_combine {
    ($kind:expr, $acc:ty, $f:ident => $body:expr) => {{
        use $crate::device::element::Accumulator;
        match $kind {
            ::planc_ir::sharding::ReduceKind::Sum => {
                let $f = <$acc as Accumulator>::add;
                $body
            }
            ::planc_ir::sharding::ReduceKind::Prod => {
                let $f = <$acc as Accumulator>::mul;
                $body
            }
            ::planc_ir::sharding::ReduceKind::Max => {
                let $f = <$acc as Accumulator>::max;
                $body
            }
            ::planc_ir::sharding::ReduceKind::Min => {
                let $f = <$acc as Accumulator>::min;
                $body
            }
        }
    }};
}

pub(crate) use {with_combine, with_elem};
