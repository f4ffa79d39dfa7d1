//! The messages against an independent implementation: what one writes, the other reads equal.

use onnx_protobuf as theirs;
use planc_ir::onnx::wire as ours;
use proptest::prelude::*;
use prost::Message as _;
use protobuf::{Message as _, MessageField};

/// Writes random messages. Values differ from the defaults, which proto3 (theirs) does not write.
struct Writer {
    state: u64,
    depth: u32,
}

impl Writer {
    fn next(&mut self, below: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.next(2) == 0).then(|| make(self))
    }

    fn many<T>(&mut self, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.next(4)).map(|_| make(self)).collect()
    }

    /// A message that nests; ever fewer as they nest deeper.
    fn nested<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.depth += 1;
        let depth = u64::from(self.depth);
        let made = (depth < 6 && self.next(depth + 1) == 0).then(|| make(self));
        self.depth -= 1;
        made
    }

    fn int(&mut self) -> i64 {
        match self.next(3) {
            0 => -1 - self.next(1 << 40) as i64,
            1 => 1 + self.next(100) as i64,
            _ => i64::MAX - self.next(5) as i64,
        }
    }

    fn int32(&mut self) -> i32 {
        1 + self.next(1000) as i32 - 2000 * (self.next(2) as i32)
    }

    fn string(&mut self) -> String {
        ["a", "größe", "x/y.z", "\n\"", "名前"][self.next(5) as usize].to_string()
    }

    fn bytes(&mut self) -> bytes::Bytes {
        (0..=self.next(9)).map(|_| self.next(256) as u8).collect::<Vec<_>>().into()
    }

    fn entry(&mut self) -> ours::StringStringEntryProto {
        ours::StringStringEntryProto {
            key: self.maybe(Self::string),
            value: self.maybe(Self::string),
        }
    }

    fn opset(&mut self) -> ours::OperatorSetIdProto {
        ours::OperatorSetIdProto {
            domain: self.maybe(Self::string),
            version: self.maybe(Self::int),
        }
    }

    fn tensor(&mut self) -> ours::TensorProto {
        ours::TensorProto {
            dims: self.many(Self::int),
            data_type: self.maybe(Self::int32),
            segment: self
                .maybe(|w| ours::Segment { begin: w.maybe(Self::int), end: w.maybe(Self::int) }),
            float_data: self.many(|w| w.int32() as f32),
            int32_data: self.many(Self::int32),
            string_data: self.many(Self::bytes),
            int64_data: self.many(Self::int),
            name: self.maybe(Self::string),
            doc_string: self.maybe(Self::string),
            raw_data: self.maybe(Self::bytes),
            external_data: self.many(Self::entry),
            data_location: self.maybe(|_| 1),
            double_data: self.many(|w| f64::from(w.int32())),
            uint64_data: self.many(|w| w.int() as u64),
            metadata_props: self.many(Self::entry),
        }
    }

    fn sparse(&mut self) -> ours::SparseTensorProto {
        ours::SparseTensorProto {
            values: self.nested(Self::tensor),
            indices: self.nested(Self::tensor),
            dims: self.many(Self::int),
        }
    }

    fn dimension_value(&mut self) -> ours::DimensionValue {
        match self.next(2) {
            0 => ours::DimensionValue::Value(self.int()),
            _ => ours::DimensionValue::Param(self.string()),
        }
    }

    fn shape(&mut self) -> ours::TensorShapeProto {
        let dim = self.many(|w| ours::Dimension {
            value: w.maybe(Self::dimension_value),
            denotation: w.maybe(Self::string),
        });
        ours::TensorShapeProto { dim }
    }

    fn tensor_type(&mut self) -> ours::TensorTypeProto {
        ours::TensorTypeProto { elem_type: self.maybe(Self::int32), shape: self.maybe(Self::shape) }
    }

    fn element_type(&mut self) -> ours::ElementTypeProto {
        ours::ElementTypeProto { elem_type: self.nested(Self::ty).map(Box::new) }
    }

    fn ty(&mut self) -> ours::TypeProto {
        let value = self.maybe(|w| match w.next(5) {
            0 => ours::TypeValue::Tensor(w.tensor_type()),
            1 => ours::TypeValue::Sequence(w.element_type()),
            2 => ours::TypeValue::SparseTensor(w.tensor_type()),
            3 => ours::TypeValue::Optional(w.element_type()),
            _ => ours::TypeValue::Map(ours::MapTypeProto {
                key_type: w.maybe(Self::int32),
                value_type: w.nested(Self::ty).map(Box::new),
            }),
        });
        ours::TypeProto { value, denotation: self.maybe(Self::string) }
    }

    fn value_info(&mut self) -> ours::ValueInfoProto {
        ours::ValueInfoProto {
            name: self.maybe(Self::string),
            r#type: self.nested(Self::ty),
            doc_string: self.maybe(Self::string),
            metadata_props: self.many(Self::entry),
        }
    }

    fn attribute(&mut self) -> ours::AttributeProto {
        ours::AttributeProto {
            name: self.maybe(Self::string),
            ref_attr_name: self.maybe(Self::string),
            doc_string: self.maybe(Self::string),
            r#type: self.maybe(|w| 1 + w.next(14) as i32),
            f: self.maybe(|w| w.int32() as f32),
            i: self.maybe(Self::int),
            s: self.maybe(Self::bytes),
            t: self.nested(Self::tensor).map(Box::new),
            g: self.nested(Self::graph).map(Box::new),
            sparse_tensor: self.nested(Self::sparse).map(Box::new),
            tp: self.nested(Self::ty).map(Box::new),
            floats: self.many(|w| w.int32() as f32),
            ints: self.many(Self::int),
            strings: self.many(Self::bytes),
            tensors: self.nested(Self::tensor).into_iter().collect(),
            graphs: self.nested(Self::graph).into_iter().collect(),
            sparse_tensors: self.nested(Self::sparse).into_iter().collect(),
            type_protos: self.nested(Self::ty).into_iter().collect(),
        }
    }

    /// The sharding of IR version 11, which their version does not know but keeps.
    fn devices(&mut self) -> ours::NodeDeviceConfigurationProto {
        let simple = |w: &mut Self| ours::SimpleShardedDimProto {
            dim: w.maybe(Self::dimension_value),
            num_shards: w.maybe(Self::int),
        };
        let dim = |w: &mut Self| ours::ShardedDimProto {
            axis: w.maybe(Self::int),
            simple_sharding: w.many(simple),
        };
        let group = |w: &mut Self| ours::IntIntListEntryProto {
            key: w.maybe(Self::int),
            value: w.many(Self::int),
        };
        let spec = |w: &mut Self| ours::ShardingSpecProto {
            tensor_name: w.maybe(Self::string),
            device: w.many(Self::int),
            index_to_device_group_map: w.many(group),
            sharded_dim: w.many(dim),
        };
        ours::NodeDeviceConfigurationProto {
            configuration_id: self.maybe(Self::string),
            sharding_spec: self.many(spec),
            pipeline_stage: self.maybe(Self::int32),
        }
    }

    fn node(&mut self) -> ours::NodeProto {
        ours::NodeProto {
            input: self.many(Self::string),
            output: self.many(Self::string),
            name: self.maybe(Self::string),
            op_type: self.maybe(Self::string),
            domain: self.maybe(Self::string),
            overload: self.maybe(Self::string),
            attribute: self.nested(Self::attribute).into_iter().collect(),
            doc_string: self.maybe(Self::string),
            metadata_props: self.many(Self::entry),
            device_configurations: self.many(Self::devices),
        }
    }

    fn graph(&mut self) -> ours::GraphProto {
        ours::GraphProto {
            node: self.many(Self::node),
            name: self.maybe(Self::string),
            initializer: self.nested(Self::tensor).into_iter().collect(),
            sparse_initializer: self.nested(Self::sparse).into_iter().collect(),
            doc_string: self.maybe(Self::string),
            input: self.many(Self::value_info),
            output: self.many(Self::value_info),
            value_info: self.many(Self::value_info),
            quantization_annotation: self.many(|w| ours::TensorAnnotation {
                tensor_name: w.maybe(Self::string),
                quant_parameter_tensor_names: w.many(Self::entry),
            }),
            metadata_props: self.many(Self::entry),
        }
    }

    fn function(&mut self) -> ours::FunctionProto {
        ours::FunctionProto {
            name: self.maybe(Self::string),
            input: self.many(Self::string),
            output: self.many(Self::string),
            attribute: self.many(Self::string),
            attribute_proto: self.many(Self::attribute),
            node: self.many(Self::node),
            doc_string: self.maybe(Self::string),
            opset_import: self.many(Self::opset),
            domain: self.maybe(Self::string),
            overload: self.maybe(Self::string),
            value_info: self.many(Self::value_info),
            metadata_props: self.many(Self::entry),
        }
    }

    fn model(&mut self) -> ours::ModelProto {
        ours::ModelProto {
            ir_version: self.maybe(Self::int),
            opset_import: self.many(Self::opset),
            producer_name: self.maybe(Self::string),
            producer_version: self.maybe(Self::string),
            domain: self.maybe(Self::string),
            model_version: self.maybe(Self::int),
            doc_string: self.maybe(Self::string),
            graph: self.maybe(Self::graph),
            metadata_props: self.many(Self::entry),
            training_info: self.many(|w| ours::TrainingInfoProto {
                initialization: w.nested(Self::graph),
                algorithm: w.nested(Self::graph),
                initialization_binding: w.many(Self::entry),
                update_binding: w.many(Self::entry),
            }),
            functions: self.many(Self::function),
            configuration: self.many(|w| ours::DeviceConfigurationProto {
                name: w.maybe(Self::string),
                num_devices: w.maybe(Self::int32),
                device: w.many(Self::string),
            }),
        }
    }
}

/// Whether one of our messages holds the same as one of theirs.
trait Same<T> {
    fn same(&self, theirs: &T);
}

impl<T: Same<U>, U> Same<U> for Box<T> {
    fn same(&self, theirs: &U) {
        self.as_ref().same(theirs);
    }
}

fn lists<A: Same<B>, B>(ours: &[A], theirs: &[B]) {
    assert_eq!(ours.len(), theirs.len());
    ours.iter().zip(theirs).for_each(|(a, b)| a.same(b));
}

fn fields<A: Same<B>, B>(ours: Option<&A>, theirs: &MessageField<B>) {
    assert_eq!(ours.is_some(), theirs.is_some());
    ours.into_iter().zip(theirs.as_ref()).for_each(|(a, b)| a.same(b));
}

/// Compares the fields of a message: scalars by their values, lists of scalars, single messages,
/// lists of messages.
macro_rules! same {
    ($ours:ident, $theirs:path; [$($scalar:ident),*] [$($list:ident),*] [$($field:ident),*] [$($many:ident),*]
        $(, $a:ident, $b:ident => $rest:block)?) => {
        impl Same<$theirs> for ours::$ours {
            fn same(&self, theirs: &$theirs) {
                $(assert_eq!(self.$scalar(), theirs.$scalar);)*
                $(assert_eq!(self.$list, theirs.$list);)*
                $(fields(self.$field.as_ref(), &theirs.$field);)*
                $(lists(&self.$many, &theirs.$many);)*
                $({ let ($a, $b) = (self, theirs); $rest })?
            }
        }
    };
}

same!(StringStringEntryProto, theirs::StringStringEntryProto; [key, value] [] [] []);
same!(OperatorSetIdProto, theirs::OperatorSetIdProto; [domain, version] [] [] []);
same!(Segment, theirs::tensor_proto::Segment; [begin, end] [] [] []);
same!(SparseTensorProto, theirs::SparseTensorProto; [] [dims] [values, indices] []);
same!(TensorShapeProto, theirs::TensorShapeProto; [] [] [] [dim]);
same!(TensorTypeProto, theirs::type_proto::Tensor; [elem_type] [] [shape] []);
same!(TensorTypeProto, theirs::type_proto::SparseTensor; [elem_type] [] [shape] []);
same!(ElementTypeProto, theirs::type_proto::Sequence; [] [] [elem_type] []);
same!(ElementTypeProto, theirs::type_proto::Optional; [] [] [elem_type] []);
same!(MapTypeProto, theirs::type_proto::Map; [key_type] [] [value_type] []);
same!(TensorAnnotation, theirs::TensorAnnotation;
    [tensor_name] [] [] [quant_parameter_tensor_names]);
same!(TrainingInfoProto, theirs::TrainingInfoProto;
    [] [] [initialization, algorithm] [initialization_binding, update_binding]);
same!(ValueInfoProto, theirs::ValueInfoProto;
    [name, doc_string] [] [] [metadata_props], a, b => { fields(a.r#type.as_ref(), &b.type_) });
same!(NodeProto, theirs::NodeProto;
    [name, op_type, domain, overload, doc_string] [input, output] [] [attribute, metadata_props]);
same!(GraphProto, theirs::GraphProto;
    [name, doc_string] [] []
    [node, initializer, sparse_initializer, input, output, value_info, quantization_annotation,
     metadata_props]);
same!(FunctionProto, theirs::FunctionProto;
    [name, doc_string, domain, overload] [input, output, attribute] []
    [attribute_proto, node, opset_import, value_info, metadata_props]);
same!(ModelProto, theirs::ModelProto;
    [ir_version, producer_name, producer_version, domain, model_version, doc_string] [] [graph]
    [opset_import, metadata_props, training_info, functions]);
same!(TensorProto, theirs::TensorProto;
    [data_type, name, doc_string, raw_data]
    [dims, float_data, int32_data, string_data, int64_data, double_data, uint64_data]
    [segment] [external_data, metadata_props],
    a, b => { assert_eq!(a.data_location() as i32, b.data_location.value()) });
same!(AttributeProto, theirs::AttributeProto;
    [name, ref_attr_name, doc_string, f, i, s] [floats, ints, strings]
    [t, g, sparse_tensor, tp] [tensors, graphs, sparse_tensors, type_protos],
    a, b => { assert_eq!(a.r#type.unwrap_or(0), b.type_.value()) });

impl Same<theirs::tensor_shape_proto::Dimension> for ours::Dimension {
    fn same(&self, theirs: &theirs::tensor_shape_proto::Dimension) {
        use theirs::tensor_shape_proto::dimension::Value;
        assert_eq!(self.denotation(), theirs.denotation);
        match (&self.value, &theirs.value) {
            (None, None) => {}
            (Some(ours::DimensionValue::Value(a)), Some(Value::DimValue(b))) => assert_eq!(a, b),
            (Some(ours::DimensionValue::Param(a)), Some(Value::DimParam(b))) => assert_eq!(a, b),
            (a, b) => panic!("{a:?} and {b:?}"),
        }
    }
}

impl Same<theirs::TypeProto> for ours::TypeProto {
    fn same(&self, theirs: &theirs::TypeProto) {
        use theirs::type_proto::Value;
        assert_eq!(self.denotation(), theirs.denotation);
        match (&self.value, &theirs.value) {
            (None, None) => {}
            (Some(ours::TypeValue::Tensor(a)), Some(Value::TensorType(b))) => a.same(b),
            (Some(ours::TypeValue::Sequence(a)), Some(Value::SequenceType(b))) => a.same(b),
            (Some(ours::TypeValue::Map(a)), Some(Value::MapType(b))) => a.same(b),
            (Some(ours::TypeValue::Optional(a)), Some(Value::OptionalType(b))) => a.same(b),
            (Some(ours::TypeValue::SparseTensor(a)), Some(Value::SparseTensorType(b))) => a.same(b),
            (a, b) => panic!("{a:?} and {b:?}"),
        }
    }
}

proptest! {
    #[test]
    fn what_one_writes_the_other_reads_equal(seed: u64) {
        let model = Writer { state: seed, depth: 0 }.model();
        let theirs = theirs::ModelProto::parse_from_bytes(&model.encode_to_vec()).unwrap();
        model.same(&theirs);
        // Their bytes differ from ours (proto3 packs lists of numbers), their meaning does not.
        let back = ours::ModelProto::decode(theirs.write_to_bytes().unwrap().as_slice()).unwrap();
        prop_assert_eq!(back, model);
    }
}
