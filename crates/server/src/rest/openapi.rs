use counterfoil_core::Retention;
use serde_json::{Value, json};

use crate::{Error, guidance::key_guidance};

const TEMPLATE: &str = include_str!("openapi.json");
/// How a caller of the REST surface looks at an uncertain outcome.
const LOOK: &str = "send the same request again with the same key, or read GET /api/v1/operations/{id} \
                    with the id of the Operation-Id header (GET /api/v1/operations lists them)";

/// The OpenAPI document: the template, with the guidance about keys and the refusals at every
/// route that has them.
pub(crate) fn document(retention: &Retention) -> Result<String, Error> {
    let wrong = |error: serde_json::Error| Error::Settings(error.to_string());
    let mut document: Value = serde_json::from_str(TEMPLATE).map_err(wrong)?;
    let guidance = key_guidance(retention, LOOK);
    let paths = document["paths"].as_object_mut().into_iter().flatten();
    for (_, methods) in paths {
        for (_, route) in methods.as_object_mut().into_iter().flatten() {
            route["responses"]["default"] = json!({ "$ref": "#/components/responses/Problem" });
            if route["x-idempotent"] == true {
                let said = route["description"].as_str().unwrap_or_default();
                route["description"] = json!(format!("{said}\n\n{guidance}"));
                let mut parameters = route["parameters"].as_array().cloned().unwrap_or_default();
                for name in ["idempotencyKey", "prefer"] {
                    let reference = format!("#/components/parameters/{name}");
                    parameters.push(json!({ "$ref": reference }));
                }
                route["parameters"] = json!(parameters);
            }
        }
    }
    serde_json::to_string_pretty(&document).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The methods a `MethodRouter` answers, as its own debug form lists them.
    fn methods(debug: &str) -> Vec<String> {
        ["get", "put", "post", "delete", "patch"]
            .into_iter()
            .filter(|method| {
                let field = format!(" {method}: ");
                debug
                    .split_once(&field)
                    .is_some_and(|(_, rest)| !rest.starts_with("None"))
            })
            .map(str::to_owned)
            .collect()
    }

    fn parsed() -> Value {
        serde_json::from_str(&document(&Retention::default()).unwrap()).unwrap()
    }

    #[test]
    fn the_document_has_the_routes_of_the_router_and_no_others() {
        let document = parsed();
        let mut served = Vec::new();
        for (path, route) in super::super::routes()
            .into_iter()
            .chain(super::super::open_routes())
        {
            let found = methods(&format!("{route:?}"));
            assert!(!found.is_empty(), "{path}");
            served.extend(found.into_iter().map(|method| format!("{method} {path}")));
        }
        let mut described: Vec<String> = document["paths"]
            .as_object()
            .unwrap()
            .iter()
            .flat_map(|(path, route)| {
                let methods = route.as_object().unwrap().keys();
                methods.map(move |method| format!("{method} {path}"))
            })
            .collect();
        served.sort();
        described.sort();
        assert_eq!(described, served);
    }

    #[test]
    fn field_15_every_mutation_says_how_to_use_a_key() {
        let document = parsed();
        for (path, route) in document["paths"].as_object().unwrap() {
            for (method, route) in route.as_object().unwrap() {
                let mutates = method != "get";
                assert_eq!(route["x-idempotent"] == true, mutates, "{method} {path}");
                let text = route["description"].as_str().unwrap_or_default();
                for part in ["Make a key", "Reuse it", "48h", "uncertain"] {
                    assert_eq!(text.contains(part), mutates, "{method} {path}: {part}");
                }
                assert!(!text.contains("unique for every request"));
            }
        }
    }

    #[test]
    fn every_reference_is_there() {
        fn check(value: &Value, document: &Value) {
            match value {
                Value::Object(members) => {
                    if let Some(reference) = members.get("$ref") {
                        let pointer = reference.as_str().unwrap().trim_start_matches('#');
                        assert!(document.pointer(pointer).is_some(), "{reference}");
                    }
                    members.values().for_each(|value| check(value, document));
                }
                Value::Array(items) => items.iter().for_each(|value| check(value, document)),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
        let document = parsed();
        check(&document, &document);
    }
}
