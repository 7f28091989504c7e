import { Component, type ReactNode } from "react";

import { Button } from "../ui/button";
import { Empty } from "../ui/empty";

interface Props {
  children: ReactNode;
}

/** A bug in one page does not take the whole window: it is said, and one can go on. */
export class Boundary extends Component<Props, { error: Error | null }> {
  override state = { error: null as Error | null };

  static getDerivedStateFromError(error: Error) {
    return { error };
  }

  override render() {
    if (!this.state.error) return this.props.children;
    return (
      <Empty title="This page has a bug">
        <p>{this.state.error.message}</p>
        <Button onClick={() => location.reload()}>Load it again</Button>
      </Empty>
    );
  }
}
