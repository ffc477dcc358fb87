//! Open enumerations: a newtype whose known values are constants, so that a value which this
//! version of the specification does not define can still be held, compared and printed.

macro_rules! open_enum {
    (
        $(#[$meta:meta])*
        $name:ident {
            $( $(#[$value_meta:meta])* $constant:ident = $value:literal, $label:literal; )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(
            /// The encoded value.
            pub u8,
        );

        impl $name {
            $( $(#[$value_meta])* pub const $constant: Self = Self($value); )*

            /// The name that the specification gives to this value, if it is one known here.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $( $value => Some($label), )*
                    _ => None,
                }
            }
        }

        impl From<u8> for $name {
            fn from(value: u8) -> Self {
                Self(value)
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.pad(name),
                    None => write!(f, "unknown ({:02X}h)", self.0),
                }
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{}({self}, {:02X}h)", stringify!($name), self.0)
            }
        }
    };
}

pub(crate) use open_enum;
