//! Values of columns and parameters.

/// Type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ValueKind {
    Integer,
    Real,
    Text,
    Blob,
}

/// Value of a column or a parameter.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// NULL, with the type that the value would have: PostgreSQL needs the type to prepare a statement.
    Null(ValueKind),
    Integer(i64),
    Real(f64),
    Text(String),
    Blob(Vec<u8>),
}

impl Value {
    pub(crate) fn kind(&self) -> ValueKind {
        match self {
            Value::Null(kind) => *kind,
            Value::Integer(_) => ValueKind::Integer,
            Value::Real(_) => ValueKind::Real,
            Value::Text(_) => ValueKind::Text,
            Value::Blob(_) => ValueKind::Blob,
        }
    }
}

/// Type that can be a parameter.
pub trait ToValue {
    /// Type of the values.
    const KIND: ValueKind;
    /// Converts the value to a parameter.
    fn to_value(&self) -> Value;
}

/// Type that can be read from a column.
pub trait FromValue: Sized {
    /// Type of the column.
    const KIND: ValueKind;
    /// Converts the value of a column; returns `None` if it has another type or is out of range.
    fn from_value(value: &Value) -> Option<Self>;
}

/// Parameters of a statement.
pub trait Params {
    /// Returns the parameters in their order.
    fn to_values(&self) -> Vec<Value>;
}

impl Params for [Value; 0] {
    fn to_values(&self) -> Vec<Value> {
        Vec::new()
    }
}

impl Params for Vec<Value> {
    fn to_values(&self) -> Vec<Value> {
        self.clone()
    }
}

macro_rules! arrays {
    // If one generic implementation covered arrays of all lengths, the element type of `[]` would be undetermined.
    ($($length:literal),*) => {$(
        impl<T: ToValue> Params for [T; $length] {
            fn to_values(&self) -> Vec<Value> {
                self.iter().map(ToValue::to_value).collect()
            }
        }
    )*};
}

arrays!(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16);

/// Number of a column. Because of this trait, [`super::Row::get`] has the same type parameters as in rusqlite.
pub trait ColumnIndex {
    /// Returns the number of the column, counted from 0.
    fn to_index(self) -> usize;
}

impl ColumnIndex for usize {
    fn to_index(self) -> usize {
        self
    }
}

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl ToValue for $integer {
            const KIND: ValueKind = ValueKind::Integer;
            fn to_value(&self) -> Value {
                Value::Integer(i64::from(*self))
            }
        }

        impl FromValue for $integer {
            const KIND: ValueKind = ValueKind::Integer;
            fn from_value(value: &Value) -> Option<$integer> {
                match value {
                    Value::Integer(number) => <$integer>::try_from(*number).ok(),
                    _ => None,
                }
            }
        }
    )*};
}

integers!(i64, i32, u32, u8);

impl ToValue for bool {
    const KIND: ValueKind = ValueKind::Integer;
    fn to_value(&self) -> Value {
        Value::Integer(i64::from(*self))
    }
}

impl FromValue for bool {
    const KIND: ValueKind = ValueKind::Integer;
    fn from_value(value: &Value) -> Option<bool> {
        match value {
            Value::Integer(number) => Some(*number != 0),
            _ => None,
        }
    }
}

impl ToValue for f64 {
    const KIND: ValueKind = ValueKind::Real;
    fn to_value(&self) -> Value {
        Value::Real(*self)
    }
}

impl FromValue for f64 {
    const KIND: ValueKind = ValueKind::Real;
    fn from_value(value: &Value) -> Option<f64> {
        match value {
            Value::Real(number) => Some(*number),
            _ => None,
        }
    }
}

impl ToValue for str {
    const KIND: ValueKind = ValueKind::Text;
    fn to_value(&self) -> Value {
        Value::Text(self.to_owned())
    }
}

impl ToValue for String {
    const KIND: ValueKind = ValueKind::Text;
    fn to_value(&self) -> Value {
        Value::Text(self.clone())
    }
}

impl FromValue for String {
    const KIND: ValueKind = ValueKind::Text;
    fn from_value(value: &Value) -> Option<String> {
        match value {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        }
    }
}

impl ToValue for Vec<u8> {
    const KIND: ValueKind = ValueKind::Blob;
    fn to_value(&self) -> Value {
        Value::Blob(self.clone())
    }
}

impl FromValue for Vec<u8> {
    const KIND: ValueKind = ValueKind::Blob;
    fn from_value(value: &Value) -> Option<Vec<u8>> {
        match value {
            Value::Blob(bytes) => Some(bytes.clone()),
            _ => None,
        }
    }
}

impl<const N: usize> ToValue for [u8; N] {
    const KIND: ValueKind = ValueKind::Blob;
    fn to_value(&self) -> Value {
        Value::Blob(self.to_vec())
    }
}

impl<const N: usize> FromValue for [u8; N] {
    const KIND: ValueKind = ValueKind::Blob;
    fn from_value(value: &Value) -> Option<[u8; N]> {
        match value {
            Value::Blob(bytes) => bytes.as_slice().try_into().ok(),
            _ => None,
        }
    }
}

impl<T: ToValue> ToValue for Option<T> {
    const KIND: ValueKind = T::KIND;
    fn to_value(&self) -> Value {
        self.as_ref().map_or(Value::Null(T::KIND), ToValue::to_value)
    }
}

impl<T: FromValue> FromValue for Option<T> {
    const KIND: ValueKind = T::KIND;
    fn from_value(value: &Value) -> Option<Option<T>> {
        match value {
            Value::Null(_) => Some(None),
            value => T::from_value(value).map(Some),
        }
    }
}

impl<T: ToValue + ?Sized> ToValue for &T {
    const KIND: ValueKind = T::KIND;
    fn to_value(&self) -> Value {
        (**self).to_value()
    }
}

impl ToValue for Value {
    /// Arbitrary type, as required by the trait: each [`Value`] contains its own type.
    const KIND: ValueKind = ValueKind::Text;
    fn to_value(&self) -> Value {
        self.clone()
    }
}

impl FromValue for Value {
    const KIND: ValueKind = ValueKind::Text;
    fn from_value(value: &Value) -> Option<Value> {
        Some(value.clone())
    }
}
