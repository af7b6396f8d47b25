//! Declarations of messages.

/// Makes types, and their bytes, of declarations that name both.
///
/// A declaration is a type as Rust has it, with documentation, attributes and visibility, and besides:
///
/// - *a number before each variant* of an enum, the byte that it begins with, and behind the enum's name
///   what a byte is called that no variant has: `enum Answer | "an unknown answer" { 1 => Done, ... }`.
///   Variants have no field, one without a name, or fields with names. Where none has a field, the
///   number is the discriminant too.
/// - *the layout of a field*, where its type has not one [`Field`](crate::Field):
///   `name: String as Text<u8, 64>`. Behind that of a list may stand what too many items are called:
///   `as List<u8, 0, 40> | "too many sources"`.
/// - *what must hold of a struct* beyond its fields: `struct Shape checked by Shape::check { ... }`, a
///   function from a reference to a [`Result`] with [`Malformed`](crate::Malformed).
///
/// Fields are written in the order in which they are declared. `for Name { a, b as Text<u8, 9> }` gives
/// bytes to a struct that is declared elsewhere in the crate; the field of a newtype is `0`.
///
/// A type with a lifetime borrows from the bytes that it is read from.
#[macro_export]
macro_rules! messages {
    () => {};
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident $(<$life:lifetime>)? $(checked by $check:path)? {
            $(
                $(#[$field_meta:meta])*
                $field_vis:vis $field:ident: $type:ty $(as $layout:ty)? $(| $words:literal)?
            ),* $(,)?
        }
        $($more:tt)*
    ) => {
        $(#[$meta])*
        $vis struct $name $(<$life>)? {
            $( $(#[$field_meta])* $field_vis $field: $type, )*
        }
        $crate::__implement! {
            [$($life)?] $name [self out input]
            put { $( $crate::__put!(&self.$field, out $(, $layout)?); )* }
            take {
                let taken = Self {
                    $( $field: $crate::__take!(input [$($layout)?] $($words)?), )*
                };
                $( $check(&taken)?; )?
                Ok(taken)
            }
        }
        $crate::messages! { $($more)* }
    };
    (
        for $name:ident {
            $( $field:tt $(as $layout:ty)? $(| $words:literal)? ),* $(,)?
        }
        $($more:tt)*
    ) => {
        $crate::__implement! {
            [] $name [self out input]
            put { $( $crate::__put!(&self.$field, out $(, $layout)?); )* }
            take {
                Ok(Self {
                    $( $field: $crate::__take!(input [$($layout)?] $($words)?), )*
                })
            }
        }
        $crate::messages! { $($more)* }
    };
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident | $unknown:literal {
            $( $(#[$variant_meta:meta])* $tag:literal => $variant:ident ),+ $(,)?
        }
        $($more:tt)*
    ) => {
        $(#[$meta])*
        $vis enum $name {
            $( $(#[$variant_meta])* $variant = $tag, )*
        }
        $crate::__implement! {
            [] $name [self out input]
            put {
                let tag: u8 = match self {
                    $( Self::$variant => $tag, )*
                };
                out.put(&tag);
            }
            tagged tag { $( $tag => Self::$variant, )* } $unknown
        }
        $crate::messages! { $($more)* }
    };
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident $(<$life:lifetime>)? | $unknown:literal {
            $(
                $(#[$variant_meta:meta])*
                $tag:literal => $variant:ident
                $({
                    $(
                        $(#[$field_meta:meta])*
                        $field:ident: $type:ty $(as $layout:ty)? $(| $words:literal)?
                    ),* $(,)?
                })?
                $(( $one:ty $(as $one_layout:ty)? $(| $one_words:literal)? ))?
            ),+ $(,)?
        }
        $($more:tt)*
    ) => {
        $(#[$meta])*
        $vis enum $name $(<$life>)? {
            $(
                $(#[$variant_meta])*
                $variant $({ $( $(#[$field_meta])* $field: $type, )* })? $(($one))?,
            )*
        }
        $crate::__implement! {
            [$($life)?] $name [self out input]
            put {
                match self { $(
                    Self::$variant $({ $($field),* })? $(($crate::__second!([$one] one)))? => {
                        out.put::<u8>(&$tag);
                        $( $( $crate::__put!($field, out $(, $layout)?); )* )?
                        $( $crate::__put!($crate::__second!([$one] one), out $(, $one_layout)?); )?
                    }
                )* }
            }
            tagged tag { $(
                $tag => Self::$variant
                    $({ $( $field: $crate::__take!(input [$($layout)?] $($words)?), )* })?
                    $(( $crate::__take!(input [$($one_layout)?] $($one_words)? => $one) ))?,
            )* } $unknown
        }
        $crate::messages! { $($more)* }
    };
}

/// The implementations for one type.
#[doc(hidden)]
#[macro_export]
macro_rules! __implement {
    ([] $($rest:tt)*) => { $crate::__implement! { @ ['input] [] $($rest)* } };
    ([$life:lifetime] $($rest:tt)*) => { $crate::__implement! { @ [$life] [<$life>] $($rest)* } };
    (
        @ [$life:lifetime] [$($of:tt)*] $name:ident [$this:ident $out:ident $input:ident]
        put $put:block
        take $take:block
    ) => {
        impl<$life> $crate::Field<$life> for $name $($of)* {
            #[inline]
            fn put(&$this, $out: &mut $crate::Writer<'_>) $put

            #[inline]
            fn take(
                $input: &mut $crate::Reader<$life>,
            ) -> $crate::Taken<Self> $take
        }
    };
    (
        @ [$life:lifetime] [$($of:tt)*] $name:ident [$this:ident $out:ident $input:ident]
        put $put:block
        tagged $tag:ident { $( $number:literal => $variant:expr, )* } $unknown:literal
    ) => {
        impl<$life> $crate::Field<$life> for $name $($of)* {
            #[inline]
            fn put(&$this, $out: &mut $crate::Writer<'_>) $put

            #[inline]
            fn take(
                $input: &mut $crate::Reader<$life>,
            ) -> $crate::Taken<Self> {
                let $tag = $input.take()?;
                $crate::Tagged::take_tagged($tag, $input)
            }
        }

        impl<$life> $crate::Tagged<$life> for $name $($of)* {
            #[inline]
            #[allow(unused_variables, reason = "an enum without fields reads no more")]
            fn take_tagged(
                $tag: u8,
                $input: &mut $crate::Reader<$life>,
            ) -> $crate::Taken<Self> {
                Ok(match $tag {
                    $( $number => $variant, )*
                    _ => return Err($crate::Malformed($unknown)),
                })
            }
        }
    };
}

/// Writes one field.
#[doc(hidden)]
#[macro_export]
macro_rules! __put {
    ($value:expr, $out:ident) => {
        $out.put($value)
    };
    ($value:expr, $out:ident, $layout:ty) => {
        $out.put_as::<$layout, _>($value)
    };
}

/// Reads one field.
#[doc(hidden)]
#[macro_export]
macro_rules! __take {
    ($input:ident [] $(=> $type:ty)?) => {
        $input.take()?
    };
    ($input:ident [$layout:ty] $(=> $type:ty)?) => {
        $input.take_as::<$layout, _>()?
    };
    ($input:ident [$layout:ty] $words:literal $(=> $type:ty)?) => {
        $input
            .take_as::<$layout, _>()
            .map_err(|wrong| wrong.of_list($words))?
    };
}

/// The second of two, where the first is needed to say how often.
#[doc(hidden)]
#[macro_export]
macro_rules! __second {
    ([$first:ty] $second:ident) => {
        $second
    };
}
