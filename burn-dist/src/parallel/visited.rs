//! Keeps the path of a visitor or mapper in a module.

/// Has it keep the names on the way to what it visits in its field `path`, and, if that is asked
/// for, the type of what holds the field that was entered last in `container`.
macro_rules! keeps_path {
    ($(and $container:ident)?) => {
        fn enter_module(&mut self, name: &str, _container_type: &str) {
            $(_container_type.clone_into(&mut self.$container);)?
            self.path.push(name.to_owned());
        }

        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.path.pop();
        }
    };
}
pub(super) use keeps_path;
