//! What Streamable HTTP asks of everybody who serves it, of an endpoint and of a proxy alike: the
//! checks before a body is read, the ones of headers against the body, and the two forms of an
//! answer. Knows nothing of tools and keys.

pub use crate::{
    era::{
        CAPABILITIES_KEY, LEGACY, MODERN, VERSION_KEY, check_method, check_name, check_param,
        check_version, subject_of,
    },
    http::{
        for_now,
        guard::{Accepts, Guard, content_type},
        json_response, plain, refuse,
        stream::{event, response as events},
        whole,
    },
    stdio::joined,
};
